"""``headrace up`` as a process."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def up(
    model: Path, log: Path, *options: str, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run it on a tiny model, called ``tiny``, with its log lines in ``log``. It is killed at the end."""
    command = [
        *(sys.executable, "-P", "-c", "from headrace.worker.cli import main; main()", "up"),
        *("--model", str(model), "--served-name", "tiny", "--gateway-port", "0", "--device", "cpu"),
        *("--kv-cache-memory", "1MiB", *options),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    environment |= variables or {}
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def address(process: subprocess.Popen[str], kind: str) -> str:
    """What it prints behind ``kind``; read in the order printed."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(rf"{kind}: (\S+)", line):
            return found[1]
    raise AssertionError(f"ended without a {kind}")
