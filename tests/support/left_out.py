"""Tests that a plain run leaves out, and a line in its summary that says which.

What is left out has one of the markers below, by its folder or by itself; ``always`` keeps a test of such a
folder in. ``--with slow,browser`` turns markers on, ``--with all`` every one; a file that is named on the
command line, and a marker that is named with ``-m``, run whole.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

MARKERS = {
    "slow": "takes many seconds: soaks, fail-overs, a full-sized model, whole matrices of kernels",
    "browser": "needs Chromium",
    "node": "installs npm packages and runs Node",
    "docker": "builds images and runs containers; needs Docker or Podman with Compose",
}
FOLDERS = {"e2e/web": "browser", "e2e/js": "node", "e2e/containers": "docker"}
_TESTS = Path(__file__).parents[1]
_COUNTS = pytest.StashKey[Counter[str]]()
_OUTPUT = "left_out"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--with",
        dest="with_markers",
        type=_markers,
        default=frozenset(),
        metavar="MARKERS",
        help=f"run what is left out otherwise: all, or some of {', '.join(MARKERS)}, separated by commas",
    )


def _markers(text: str) -> frozenset[str]:
    if text == "all":
        return frozenset(MARKERS)
    names = frozenset(text.split(","))
    if unknown := names - MARKERS.keys():
        raise pytest.UsageError(f"--with: expected all or some of {', '.join(MARKERS)}, got {min(unknown)}")
    return names


def pytest_configure(config: pytest.Config) -> None:
    for name, why in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {why}; left out without --with {name}")
    config.addinivalue_line("markers", "always: is not left out with its folder")
    config.stash[_COUNTS] = Counter()


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker("always"):
        return
    folder = item.path.relative_to(_TESTS).parent.as_posix() if item.path.is_relative_to(_TESTS) else ""
    if marker := FOLDERS.get(folder):
        item.add_marker(marker)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.option.with_markers | set(re.findall(r"\w+", config.option.markexpr or ""))
    named = {Path(argument.split("::")[0]).resolve() for argument in config.args if ".py" in argument}
    kept: list[pytest.Item] = []
    out: list[pytest.Item] = []
    for item in items:
        marker = next((m for m in MARKERS if m not in wanted and item.get_closest_marker(m)), None)
        if marker is None or item.path in named:
            kept.append(item)
        else:
            out.append(item)
            config.stash[_COUNTS][marker] += 1
    items[:] = kept
    if out:
        config.hook.pytest_deselected(items=out)


def pytest_sessionfinish(session: pytest.Session) -> None:
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_OUTPUT] = dict(session.config.stash[_COUNTS])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each process has collected the same."""
    node.config.stash[_COUNTS] |= Counter(getattr(node, "workeroutput", {}).get(_OUTPUT, {}))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if counts := config.stash[_COUNTS]:
        names = [name for name in MARKERS if counts[name]]
        terminalreporter.write_line(
            f"left out: {', '.join(f'{counts[name]} {name}' for name in names)}; "
            f"run them too with --with {','.join(names)}, or everything with --with all"
        )
