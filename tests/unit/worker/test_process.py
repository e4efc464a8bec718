"""On a CPU, torch's threads leave the cores to others while they wait, and memory is kept for reuse."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = "from headrace.worker.cli import main; main()"


@pytest.mark.parametrize(("given", "used"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_they_sleep_unless_told_otherwise(tmp_path: Path, given: str | None, used: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {"OMP_DISPLAY_ENV": "true"} | ({"OMP_WAIT_POLICY": given} if given else {})
    command = [sys.executable, "-c", COMMAND, "worker", "--model", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert f"OMP_WAIT_POLICY = '{used}'" in done.stderr


FAULTS = """
import resource, sys, threading
if sys.argv[1:]:
    from headrace.worker.process import prepare_process
    prepare_process()
import torch

def work():
    for _ in range(20):
        torch.ones(24 << 20).add_(1)  # 96 MiB

def count():
    work()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

thread = threading.Thread(target=count)  # as the engine has its own
thread.start()
thread.join()
"""


def test_memory_of_results_is_not_fetched_anew_page_by_page() -> None:
    def faults(*arguments: str) -> int:
        command = [sys.executable, "-c", FAULTS, *arguments]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert faults("prepared") < faults() / 10
