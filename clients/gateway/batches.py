"""Running batches: any gateway takes one for the time of a lease, and another goes on where it stopped.

Each line's request has an id made of the batch and the line, and each line's result is written once under
its number. So it does not matter how often or by how many gateways a line is worked on.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from time import time
from typing import Final

import anyio

from ..connection import Connection
from .batch_runner import LineRunner
from .batch_store import ENDED, Batch, BatchStore
from .errors import unavailable
from .files import Files, StoredFile
from .metrics import Metrics
from .redis_keys import GatewayKeys
from .schedule import Schedule, Taken
from .scheduled_work import work_off
from .settings import GatewaySettings

LIMIT: Final = 10_000
"""Batches that may run, of all tenants together."""
_AT_ONCE: Final = 16
_LEASE: Final = 30.0
_LOOK_EVERY: Final = 3.0
"""Seconds between renewals of the lease, which is also how soon a cancelled batch stops."""
_STOP_WITHIN: Final = 10.0
"""Seconds that requests which were cancelled may take to end; without a worker they never would."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Run:
    """A batch while this gateway has it."""

    batch: Batch
    taken: Taken
    lines: LineRunner
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    stopping: bool = False


class Batches:
    """Raises ``Unavailable`` where it talks to Redis."""

    def __init__(
        self,
        settings: GatewaySettings,
        connection: Connection,
        files: Files,
        store: BatchStore,
        make_runner: Callable[[Batch], LineRunner],
        metrics: Metrics,
    ) -> None:
        self._files = files
        self._store = store
        self._make_runner = make_runner
        self._metrics = metrics
        self._window = settings.batch_window
        keys = GatewayKeys(settings.namespace)
        self._schedule = Schedule(connection, keys, "batches", limit=LIMIT, ttl=2 * settings.batch_ttl)

    async def start(self, batch: Batch) -> None:
        """Have the batch run.

        Raises:
            ApiError: 503, too many run.
        """
        if not await self._schedule.add(batch.id, b""):
            raise unavailable("Too many batches run at the moment.", "too_many_batches", 60)

    async def run(self) -> None:
        """Run batches, for ever."""
        await work_off(self._schedule, _LEASE, _AT_ONCE, self._work)

    async def _work(self, taken: Taken) -> None:
        batch = await self._store.read(taken.id)
        if batch is None or batch.status in ENDED:
            await self._schedule.finish(taken)
            return
        if batch.status == "validating":
            await self._store.reach(batch.id, "in_progress")
        run = _Run(batch, taken, self._make_runner(batch))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._hold, run, tasks.cancel_scope)
            with run.scope:
                await self._run_lines(run)
            await self._end(run)
            await self._schedule.finish(run.taken)
            tasks.cancel_scope.cancel()

    async def _hold(self, run: _Run, everything: anyio.CancelScope) -> None:
        """Keep the lease, and look whether the batch is to stop."""
        while True:
            await anyio.sleep(_LOOK_EVERY)
            taken = await self._schedule.postpone(run.taken, _LEASE, b"")
            batch = await self._store.read(run.batch.id)
            if taken is None or batch is None:
                _log.warning("batch %s: somebody else has it, or it has expired", run.batch.id)
                everything.cancel()
                return
            run.taken, run.batch = taken, batch
            if not run.stopping and (batch.status == "cancelling" or time() >= batch.expires):
                run.stopping = True
                run.scope.deadline = anyio.current_time() + _STOP_WITHIN
                await run.lines.cancel()

    async def _run_lines(self, run: _Run) -> None:
        batch = run.batch
        done = await self._files.numbers(batch.output_file) | await self._files.numbers(batch.error_file)
        places = anyio.Semaphore(self._window)

        async def attempt(number: int, line: bytes) -> None:
            try:
                await self._run_line(run, number, line)
            finally:
                places.release()

        async with anyio.create_task_group() as lines:
            async for number, line in self._files.lines(batch.input_file, batch.total):
                if number in done:
                    continue
                await places.acquire()
                if run.stopping or batch.status == "cancelling":
                    break
                lines.start_soon(attempt, number, line)

    async def _run_line(self, run: _Run, number: int, line: bytes) -> None:
        outcome = await run.lines.run(number, line)
        if outcome is None:
            return
        answered, result = outcome
        file = run.batch.output_file if answered else run.batch.error_file
        await self._files.add_lines(file, {number: result})
        self._metrics.batch_lines.labels("answered" if answered else "failed").inc()

    async def _end(self, run: _Run) -> None:
        batch = run.batch
        await self._store.reach(batch.id, "finalizing")
        ended = 0
        for file_id, name in ((batch.output_file, "output"), (batch.error_file, "errors")):
            sizes = [len(line) + 1 async for _, line in self._files.lines(file_id, batch.total)]
            ended += len(sizes)
            if sizes:
                filename = f"{batch.id}_{name}.jsonl"
                about = StoredFile(file_id, filename, "batch_output", int(time()), sum(sizes), batch.total)
                await self._files.describe(about)
        if ended == batch.total:
            status = "completed"
        elif "cancelling" in batch.times:
            status = "cancelled"
        else:
            status = "expired"
        await self._store.reach(batch.id, status)
