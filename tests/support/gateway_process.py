"""``headrace gateway`` as a process, on a host whose clock may be wrong."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wrong_clock import WRONG_CLOCK


def command(*arguments: str, hours: int = 0) -> list[str]:
    """``headrace`` with ``arguments``, on a host whose clock is so many hours ahead."""
    program = WRONG_CLOCK.format(hours=hours) + "from headrace.worker.cli import main; main()"
    return [sys.executable, "-P", "-c", program, *arguments]


@contextmanager
def gateway_process(
    redis_url: str, log: Path, *options: str, hours: int = 0
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The process and its URL, once it listens. It is killed at the end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    environment["HEADRACE_GATEWAY_WEBHOOK_SECRET"] = "0123456789abcdef"  # noqa: S105  of nobody
    arguments = ("gateway", "--port", "0", "--redis", redis_url, *options)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command(*arguments, hours=hours), stdout=output, stderr=subprocess.STDOUT, env=environment
        )
    try:
        while not (found := re.search(r"gateway: (http://\S+)", log.read_text(errors="replace"))):
            assert process.poll() is None, log.read_text(errors="replace")
            try:
                process.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
        yield process, found[1]
    finally:
        process.kill()
        process.wait()
