"""Tests that a plain run leaves out, by a run of pytest on a folder of tests like this one."""

import re

import left_out
import pytest

pytest_plugins = ["pytester"]

PLAIN = """
import pytest
def test_quick(): pass
@pytest.mark.slow
def test_long(): pass
@pytest.mark.slow
def test_longer(): pass
"""
WEB = """
import pytest
def test_page(): pass
@pytest.mark.always
def test_source(): pass
"""


@pytest.fixture
def folder(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setattr(left_out, "_TESTS", pytester.path)
    pytester.makepyfile(test_plain=PLAIN)
    (pytester.path / "e2e" / "web").mkdir(parents=True)
    (pytester.path / "e2e" / "web" / "test_web.py").write_text(WEB)
    return pytester


def run(folder: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return folder.runpytest_inprocess("-v", "-p", "left_out", "--strict-markers", *arguments)


def outcome(folder: pytest.Pytester, *arguments: str) -> tuple[set[str], str]:
    """The tests that passed, and the summary's line on what was left out."""
    result = run(folder, *arguments)
    assert result.ret == 0
    said = [line for line in result.outlines if line.startswith("left out: ")]
    assert len(said) <= 1
    lines = [line for line in result.outlines if "PASSED" in line]
    passed = {name for line in lines for name in re.findall(r"::(test_\w+)", line)}
    return passed, "".join(said)


def test_a_plain_run_says_what_it_leaves_out_and_how_to_run_it(folder: pytest.Pytester) -> None:
    passed, said = outcome(folder)
    assert passed == {"test_quick", "test_source"}
    assert said == (
        "left out: 2 slow, 1 browser; run them too with --with slow,browser, or everything with --with all"
    )


def test_processes_side_by_side_count_each_test_once(folder: pytest.Pytester) -> None:
    passed, said = outcome(folder, "-n", "2", "-m", "not browser")
    assert "test_quick" in passed
    assert said.startswith("left out: 2 slow; ")


def test_a_marker_that_is_asked_for_runs_beside_the_rest(folder: pytest.Pytester) -> None:
    passed, said = outcome(folder, "--with", "slow")
    assert passed == {"test_quick", "test_source", "test_long", "test_longer"}
    assert said == "left out: 1 browser; run them too with --with browser, or everything with --with all"


def test_a_marker_that_is_selected_runs_alone(folder: pytest.Pytester) -> None:
    assert outcome(folder, "-m", "browser")[0] == {"test_page"}


def test_with_all_nothing_is_left_out(folder: pytest.Pytester) -> None:
    passed, said = outcome(folder, "--with", "all")
    assert passed == {"test_quick", "test_source", "test_long", "test_longer", "test_page"}
    assert said == ""


def test_a_file_that_is_named_runs_whole(folder: pytest.Pytester) -> None:
    passed, said = outcome(folder, "e2e/web/test_web.py")
    assert passed == {"test_page", "test_source"}
    assert said == ""


def test_an_unknown_marker_is_refused_by_name(folder: pytest.Pytester) -> None:
    result = run(folder, "--with", "slow,fast")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--with: expected all or some of slow, browser, node, docker, got fast" in result.stderr.str()
