"""Forks workers on request: each is a process of its own, and starts without the seconds that imports take.

Run with ``simulated`` or ``real``: what the workers serve. Reads one JSON object a line, the keyword
arguments of ``serve``, and answers ``{"pid": ...}``; ``{"ready": pid}`` follows once that worker takes
requests, and ``{"exited": pid, "status": n}`` when it has ended, n negative for the signal that killed it.
Ends, with all its workers, when its input ends.
"""

import json
import os
import selectors
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from simulated_model import MODEL, simulated_assembly
from wrong_clock import WRONG_CLOCK

from headrace.worker.app import run_worker
from headrace.worker.assembly import Assembly
from headrace.worker.config import WorkerConfig
from headrace.worker.logs import configure

if sys.argv[1] == "real":
    import torch  # noqa: F401 - for the workers: imported once, here

    import headrace.worker.model.load.loader
    import headrace.worker.model.run.runner  # noqa: F401


_ANSWERS = 3
"""File descriptor: where the zygote's answers go, from its workers too."""


def serve(
    settings: dict[str, Any],
    *,
    step_seconds: float,
    num_blocks: int = 64,
    verified: bool = True,
    hours: int = 0,
) -> None:
    """One worker's life, until a signal, on a host whose clock is so many ``hours`` ahead.

    Leaked blocks, and whatever is raised, make its exit status 1."""
    exec(WRONG_CLOCK.format(hours=hours), {})  # noqa: S102  our own
    assemblies: list[Assembly] = []

    def on_ready(assembly: Assembly) -> None:
        assemblies.append(assembly)
        os.write(_ANSWERS, json.dumps({"ready": os.getpid()}).encode() + b"\n")

    if sys.argv[1] == "real":
        config = WorkerConfig(**settings)
        slow = partial(_slow, step_seconds)
        anyio.run(partial(run_worker, config, observe=slow, on_ready=on_ready))
    else:
        config = WorkerConfig(model=MODEL, served_name=MODEL, block_size=8, **settings)
        simulated = partial(
            simulated_assembly, step_seconds=step_seconds, num_blocks=num_blocks, verified=verified
        )
        anyio.run(partial(run_worker, config, assemble=simulated, on_ready=on_ready))
    for assembly in assemblies:
        engine = assembly.engine
        engine.check()
        status = engine.status
        if not status.running + status.waiting and status.blocks_free != status.blocks_total:
            raise AssertionError(f"leaked {status.blocks_total - status.blocks_free} blocks")


def _slow(seconds: float, *_: object) -> None:
    time.sleep(seconds)


def _fork(job: dict[str, Any]) -> int:
    told, tell = os.pipe()
    pid = os.fork()
    if pid:
        _say(pid=pid)
        os.close(told)
        os.close(tell)
        return pid
    os.close(tell)
    os.read(told, 1)  # until that has been said: what this process says of itself comes after it
    os.close(told)
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with Path(job.pop("log")).open("ab", buffering=0) as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        os.close(0)
        configure("text", job.pop("log_level"))
        serve(**job)
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    os._exit(status)


def _say(**fields: int) -> None:
    os.write(_ANSWERS, json.dumps(fields).encode() + b"\n")


def main() -> None:
    os.dup2(1, _ANSWERS)
    watched = selectors.DefaultSelector()
    watched.register(sys.stdin.buffer.raw, selectors.EVENT_READ)
    unread = b""
    alive: dict[int, int] = {}
    while True:
        for key, _ in watched.select():
            if key.data is not None:
                watched.unregister(key.fileobj)
                os.close(alive.pop(key.data))
                _, status = os.waitpid(key.data, 0)
                _say(exited=key.data, status=os.waitstatus_to_exitcode(status))
                continue
            received = os.read(0, 1 << 16)
            if not received:
                for pid in alive:
                    os.kill(pid, signal.SIGKILL)
                return
            *lines, unread = (unread + received).split(b"\n")
            for line in lines:
                pid = _fork(json.loads(line))
                alive[pid] = os.pidfd_open(pid)
                watched.register(alive[pid], selectors.EVENT_READ, pid)


if __name__ == "__main__":
    main()
