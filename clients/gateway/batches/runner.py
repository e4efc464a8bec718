"""Execution of batches: a gateway leases one, and when the lease expires another continues it.

A line's request id is derived from the batch and the line number, and its result is written once under its
number, in one of two files. So a line can run several times, at several gateways. A batch's final status is
decided once, before its incomplete lines are written to the error file.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import anyio

from ...connection import Connection
from ..access.api_keys import Caller
from ..errors import unavailable
from ..operation.metrics import Metrics
from ..redis_clock import RedisClock
from ..redis_keys import GatewayKeys
from ..schedules.schedule import LeasedTask, Schedule
from ..schedules.work_loop import run_due_tasks
from ..settings import GatewaySettings
from .files import Files, StoredFile
from .line_runner import LineRunner
from .lines import incomplete_line
from .store import ENDED, Batch, BatchStatus, BatchStore

LIMIT: Final = 10_000
"""Most batches that run, of all tenants together."""
_AT_ONCE: Final = 16
_LEASE: Final = 30.0
_RENEW_EVERY: Final = 3.0
"""Seconds between renewals of the lease, and the longest delay before a cancelled batch stops."""
_STOP_WITHIN: Final = 10.0
"""Seconds that cancelled requests may take to end; without a worker they never do."""
_PAGE: Final = 500

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Run:
    """A batch leased to this gateway."""

    batch: Batch
    leased: LeasedTask
    lines: LineRunner
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    stopping: bool = False


class BatchRunner:
    """Raises ``Unavailable`` from all methods that use Redis."""

    def __init__(
        self,
        settings: GatewaySettings,
        connection: Connection,
        files: Files,
        store: BatchStore,
        clock: RedisClock,
        make_runner: Callable[[Batch], LineRunner],
        metrics: Metrics,
    ) -> None:
        self._files = files
        self._store = store
        self._clock = clock
        self._make_runner = make_runner
        self._metrics = metrics
        self._window = settings.batch_window
        keys = GatewayKeys(settings.namespace)
        self._schedule = Schedule(connection, keys, "batches", limit=LIMIT, ttl=2 * settings.batch_ttl)

    async def start(self, caller: Caller, batch: Batch) -> None:
        """Schedule a new batch.

        Raises:
            ApiError: 503, too many batches run; the batch is removed.
        """
        if not await self._schedule.add(batch.id, b""):
            await self._files.stop_using(batch.input_file, batch.id)
            await self._store.drop(caller, batch.id)
            raise unavailable("Too many batches run at the moment.", "too_many_batches", 60)

    async def ensure_scheduled(self, batch: Batch) -> None:
        """Schedule a batch whose gateway may have died before doing so; not at ``LIMIT``."""
        if batch.status == "validating":
            await self._schedule.add(batch.id, b"")

    async def run(self) -> None:
        """Run due batches; does not return."""
        await run_due_tasks(self._schedule, _LEASE, _AT_ONCE, self.work)

    async def work(self, leased: LeasedTask) -> None:
        """Run one batch until it ends or the lease is lost."""
        batch = await self._store.read(leased.id)
        if batch is not None and batch.status not in ENDED:
            if batch.status == "validating":
                await self._files.use(batch.input_file, batch.id, self._store.retention(batch))
                await self._store.advance(batch, "in_progress")
                batch = await self._store.read(leased.id) or batch
            run = _Run(batch, leased, self._make_runner(batch))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._renew_lease, run, tasks.cancel_scope)
                await self._run_until_complete(run)
                await self._end(run)
                await self._finish(run.leased, batch)
                tasks.cancel_scope.cancel()
        else:
            await self._finish(leased, batch)

    async def _finish(self, leased: LeasedTask, batch: Batch | None) -> None:
        if batch is not None:
            await self._files.stop_using(batch.input_file, batch.id)
        await self._schedule.finish(leased)

    async def _renew_lease(self, run: _Run, everything: anyio.CancelScope) -> None:
        """Renew the lease, and stop the batch when it is cancelled or its window has closed."""
        while True:
            await anyio.sleep(_RENEW_EVERY)
            leased = await self._schedule.postpone(run.leased, _LEASE, b"")
            batch = await self._store.read(run.batch.id)
            if leased is None or batch is None:
                _log.warning(
                    "batch %s: lease lost to another gateway, or the batch has expired", run.batch.id
                )
                everything.cancel()
                return
            run.leased, run.batch = leased, batch
            if not run.stopping and await self._should_stop(batch):
                run.stopping = True
                run.scope.deadline = anyio.current_time() + _STOP_WITHIN
                await run.lines.cancel()

    async def _should_stop(self, batch: Batch) -> bool:
        return batch.status != "in_progress" or await self._store.closed(batch)

    async def _run_until_complete(self, run: _Run) -> None:
        """Run lines until all have a result, the batch should stop, or its upload is lost."""
        with run.scope:
            if run.batch.status == "cancelling":
                await self._cancel_incomplete(run)
            while not await self._should_stop(run.batch) and not run.stopping:
                if await self._run_lines(run):
                    return
                await anyio.sleep(_RENEW_EVERY)

    async def _cancel_incomplete(self, run: _Run) -> None:
        """Cancel the requests that a previous gateway may have left: of the first lines without a result."""
        done = await self._files.recorded(run.batch.results)
        left = self._window
        async for number, line in self._files.upload_lines(run.batch.input_file, run.batch.total):
            if number in done or line is None:
                continue
            await run.lines.cancel_line(number, line)
            left -= 1
            if not left:
                return

    async def _run_lines(self, run: _Run) -> bool:
        """Whether nothing is left to run: all lines have a result, or the upload is lost."""
        batch = run.batch
        done = await self._files.recorded(batch.results)
        places = anyio.Semaphore(self._window)
        complete = True

        async def attempt(number: int, line: bytes) -> None:
            nonlocal complete
            try:
                complete &= await self._run_line(run, number, line)
            finally:
                places.release()

        async with anyio.create_task_group() as lines:
            async for number, line in self._files.upload_lines(batch.input_file, batch.total):
                if number in done:
                    continue
                if line is None:
                    _log.error(
                        "batch %s: its input file %s is lost; the lines left fail", batch.id, batch.input_file
                    )
                    return True
                await places.acquire()
                if run.stopping:
                    return False
                lines.start_soon(attempt, number, line)
        return complete

    async def _run_line(self, run: _Run, number: int, line: bytes) -> bool:
        """Whether the line has a result now."""
        outcome = await run.lines.run(number, line)
        if outcome is None:
            return False
        succeeded, result = outcome
        results = run.batch.results
        file = results.output if succeeded else results.errors
        new = await self._files.record(file, results, {number: result}, self._store.retention(run.batch))
        self._metrics.batch_lines.labels("answered" if succeeded else "failed").inc(new)
        return True

    async def _end(self, run: _Run) -> None:
        """Decide the final status, write incomplete lines to the error file, and set the status."""
        batch = await self._store.read(run.batch.id)
        if batch is not None and batch.ending is None and batch.status == "in_progress":
            await self._store.advance(batch, "finalizing", {"ending": await self._ending(batch)})
            batch = await self._store.read(batch.id)
        if batch is None or batch.status in ENDED:
            return
        ending: BatchStatus = batch.ending or "cancelled"
        await self._fail_incomplete(run.lines, batch, ending)
        results = batch.results
        for file_id, place, name in (
            (batch.output_file, results.output, "output"),
            (batch.error_file, results.errors, "errors"),
        ):
            sizes = [
                len(line) + 1 async for _, line in self._files.lines(place, batch.total) if line is not None
            ]
            if sizes:
                filename, now = f"{batch.id}_{name}.jsonl", await self._clock.now()
                about = StoredFile(file_id, filename, "batch_output", now, sum(sizes), batch.total, place)
                await self._files.describe(about)
        completed, failed = await self._files.counts(results)
        await self._store.advance(batch, ending, {"completed": completed, "failed": failed})

    async def _ending(self, batch: Batch) -> BatchStatus:
        if len(await self._files.recorded(batch.results)) >= batch.total:
            return "completed"
        return "expired" if await self._store.closed(batch) else "failed"

    async def _fail_incomplete(self, lines: LineRunner, batch: Batch, ending: BatchStatus) -> None:
        done = await self._files.recorded(batch.results)
        page: dict[int, bytes] = {}

        async def write() -> None:
            results = batch.results
            new = await self._files.record(results.errors, results, page, self._store.retention(batch))
            self._metrics.batch_lines.labels("failed").inc(new)
            page.clear()

        async for number, line in self._files.upload_lines(batch.input_file, batch.total):
            if number not in done:
                page[number] = incomplete_line(lines.line_id(number), line, ending)
            if len(page) == _PAGE:
                await write()
        if page:
            await write()
