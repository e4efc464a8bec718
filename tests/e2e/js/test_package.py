"""The JavaScript package by itself: its own tests, strict types, lint, and what it ships."""

import json
from pathlib import Path

import pytest
from node_packages import CLIENT, SUITE, npm

pytestmark = pytest.mark.usefixtures("packages")


def test_its_own_tests_pass() -> None:
    report = npm(CLIENT, "test")
    assert "fail 0" in report and "skipped 0" in report


def test_types_and_lint() -> None:
    npm(CLIENT, "run", "lint")


def test_it_ships_what_it_needs_and_nothing_else() -> None:
    (package,) = json.loads(npm(CLIENT, "pack", "--dry-run", "--json", "--ignore-scripts"))
    names = {file["path"] for file in package["files"]}
    assert {
        "package.json",
        "README.md",
        "dist/index.js",
        "dist/index.d.ts",
        "dist/scripts/sources.js",
    } <= names
    assert all(name.startswith("dist/") for name in names - {"package.json", "README.md"})


@pytest.mark.parametrize("folder", [CLIENT, SUITE], ids=["client", "suite"])
def test_a_lock_file_names_no_registry(folder: Path) -> None:
    lock = json.loads((folder / "package-lock.json").read_text())
    assert {entry.get("resolved") for entry in lock["packages"].values()} <= {None, "../../../clients/js"}
    assert all("integrity" in entry for name, entry in lock["packages"].items() if _is_fetched(name, entry))


def _is_fetched(name: str, entry: dict) -> bool:
    return "node_modules/" in name and not entry.get("link") and not entry.get("inBundle")
