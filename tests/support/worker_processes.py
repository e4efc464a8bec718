"""Worker processes that tests start, kill and stop, forked from one process that has imported everything."""

import asyncio
import json
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

_SUPPORT = Path(__file__).parent
_IMPORTS = 300.0
"""Seconds that the imports may take on a busy machine."""


@dataclass(eq=False)
class WorkerProcess:
    """One worker. ``status`` is its exit status once it has ended, negative for the signal that killed it."""

    name: str
    pid: int
    exited: "asyncio.Future[int]" = field(repr=False)
    started: asyncio.Event = field(repr=False, default_factory=asyncio.Event)
    ready: asyncio.Event = field(repr=False, default_factory=asyncio.Event)
    """It takes requests; from here on a signal to stop makes it drain."""

    @property
    def alive(self) -> bool:
        return not self.exited.done()

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def kill(self) -> None:
        self.send(signal.SIGKILL)
        await self.wait()

    async def stop(self) -> int:
        """SIGTERM once it is ready, and its exit status."""
        await self.ready.wait()
        self.send(signal.SIGTERM)
        return await self.wait()

    async def wait(self) -> int:
        """Its exit status, once it has ended. Giving up waiting does not end it."""
        return await asyncio.shield(self.exited)


class WorkerProcesses:
    """Starts workers of one kind, with their log in ``log``. Use ``worker_processes``."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.log = log
        self.started: list[WorkerProcess] = []
        self._process = process
        self._numbers = 0
        self._starting: deque[WorkerProcess] = deque()
        self._by_pid: dict[int, WorkerProcess] = {}

    async def start(
        self, settings: dict[str, Any], *, log_level: str = "warning", **more: Any
    ) -> WorkerProcess:
        """``settings`` are those of ``WorkerConfig``; ``more`` is for ``worker_zygote.serve``."""
        self._numbers += 1
        name = f"w{self._numbers}"
        job = {"settings": {"name": name, **settings}, "log": str(self.log), "log_level": log_level, **more}
        assert self._process.stdin is not None
        worker = WorkerProcess(name, 0, asyncio.get_running_loop().create_future())
        self._starting.append(worker)
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        async with asyncio.timeout(_IMPORTS):
            await worker.started.wait()
        return worker

    @property
    def alive(self) -> list[WorkerProcess]:
        return [worker for worker in self.started if worker.alive]

    async def read(self) -> None:
        """Take note of what the zygote says, until it ends."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            message = json.loads(line)
            if "pid" in message:
                worker = self._starting.popleft()
                worker.pid = message["pid"]
                self.started.append(worker)
                self._by_pid[worker.pid] = worker
                worker.started.set()
            elif "ready" in message:
                self._by_pid[message["ready"]].ready.set()
            else:
                worker = self._by_pid.pop(message["exited"])
                worker.exited.set_result(message["status"])
                worker.ready.set()


@asynccontextmanager
async def worker_processes(
    kind: Literal["simulated", "real"], folder: Path
) -> AsyncIterator[WorkerProcesses]:
    """Workers that serve ``kind``; those still alive at the end are killed."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_SUPPORT), os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    # Another working folder and -P: with the repository on its path, transformers would take the folder
    # `kernels` for the package of that name.
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        str(_SUPPORT / "worker_zygote.py"),
        kind,
        cwd=folder,
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    workers = WorkerProcesses(process, folder / "workers.log")
    reading = asyncio.create_task(workers.read())
    try:
        yield workers
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
        await reading
