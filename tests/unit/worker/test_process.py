"""On a CPU, torch's threads leave the cores to others while they wait, and memory is kept for reuse."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = "from headrace.worker.cli import main; main()"


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ({}, {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "10000"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
    ],
    ids=str,
)
def test_they_soon_sleep_unless_told_otherwise(
    tmp_path: Path, given: dict[str, str], used: dict[str, str]
) -> None:
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"OMP_DISPLAY_ENV": "verbose"} | given
    command = [sys.executable, "-c", COMMAND, "worker", "--model", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    for name, value in used.items():
        assert f"{name} = '{value}'" in done.stderr


FAULTS = """
import resource, sys
if sys.argv[1:]:
    from headrace.worker.process import prepare_process
    prepare_process()
import torch

def work():
    for _ in range(20):
        torch.ones(8 << 20).add_(1)  # 32 MiB

work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_memory_of_results_is_not_fetched_anew_page_by_page() -> None:
    def faults(*arguments: str) -> int:
        command = [sys.executable, "-c", FAULTS, *arguments]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert faults("prepared") < faults() / 10
