"""A real worker on a tiny model, in a thread of its own, whose steps take as long as a test wants."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from live_worker import live_worker

from headrace.worker.engine.engine import Engine, EngineStatus
from headrace.worker.engine.step import Step


@dataclass
class PacedWorker:
    """``pause`` is the least time of an engine step, in seconds; it may be changed at any time."""

    pause: float = 0.0
    failures: list[BaseException] = field(default_factory=list)
    """What has ended the worker before its time."""
    _engine: Engine | None = field(default=None, repr=False)

    @property
    def status(self) -> EngineStatus:
        assert self._engine is not None
        return self._engine.status

    @property
    def is_idle(self) -> bool:
        """Nothing runs or waits, and every block is free."""
        status = self.status
        return status.running + status.waiting == 0 and status.blocks_free == status.blocks_total

    def observe(self, _step: Step, engine: Engine) -> None:
        self._engine = engine
        time.sleep(self.pause)


@contextmanager
def paced_worker(url: str, folder: Path, **settings: Any) -> Iterator[PacedWorker]:
    """Serves ``folder`` as ``tiny`` until the block ends; then what is left is finished and checked."""
    worker = PacedWorker()
    started, leave = threading.Event(), threading.Event()

    async def serve() -> None:
        async with live_worker(url, folder, observe=worker.observe, **settings) as assembly:
            worker._engine = assembly.engine
            started.set()
            await anyio.to_thread.run_sync(leave.wait)

    def run() -> None:
        try:
            anyio.run(serve)
        except BaseException as error:
            worker.failures.append(error)
            started.set()

    thread = threading.Thread(target=run, name="paced worker", daemon=True)
    thread.start()
    started.wait(120)
    if worker.failures:
        raise worker.failures[0]
    try:
        yield worker
    finally:
        worker.pause = 0.0
        leave.set()
        thread.join(60)
        assert not thread.is_alive(), "the worker does not stop"
    if worker.failures:
        raise worker.failures[0]
