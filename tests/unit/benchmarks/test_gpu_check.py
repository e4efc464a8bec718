"""The GPU check runs from a bare checkout, and a part that fails is told in the table beside the others."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.checkout import ROOT
from benchmarks.gpu_check import PARTS, collect
from benchmarks.gpu_report import Row, failure, table

BARE = """
import sys
# As on a machine that has neither these packages nor headrace itself installed.
sys.modules.update(dict.fromkeys(["redis", "pydantic", "accelerate"]))
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
"""


def test_a_part_from_a_bare_checkout(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BARE)
    found = tmp_path / "found.json"
    command = ["-m", "benchmarks.gpu_check", "--device", "cpu", "--quick", "--part", "tokens"]
    result = subprocess.run(
        [sys.executable, *command, "--json", str(found)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    (row,) = json.loads(found.read_text())["rows"]
    assert (row["part"], row["measured"], row["verdict"]) == ("tokens", "6 of 6", "ok")
    assert "greedy tokens as on the CPU" in result.stdout


def test_a_part_that_breaks_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    _, rows = collect("decode", "cuda", quick=True, limit=120)
    assert [row.verdict for row in rows] == ["FAILED"]
    assert "failed: " in table([("decode", 1.0, rows)])


def test_all_parts_end_within_five_minutes() -> None:
    assert sum(part.limit for part in PARTS.values()) < 300


def test_a_part_has_a_limit_of_time() -> None:
    seconds, rows = collect("decode", "cpu", quick=True, limit=0.5)
    assert seconds < 60
    assert rows == [failure("the rest", "stopped after its 0 s")]


@pytest.mark.parametrize(
    ("ratio", "target", "verdict"),
    [
        (0.85, ">= 0.85", "ok"),
        (0.84, ">= 0.85", "MISSED"),
        (1.15, "<= 1.15", "ok"),
        (1.2, "<= 1.15", "MISSED"),
        (3.0, "", ""),
        (None, "<= 1", ""),
    ],
)
def test_targets(ratio: float | None, target: str, verdict: str) -> None:
    assert Row("case", "1 TB/s", "of 2", ratio, target).verdict == verdict
