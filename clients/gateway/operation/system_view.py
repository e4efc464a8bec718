"""Live view of the system: queues, workers and their sequences, of all tenants."""

import asyncio
from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from ...async_client import AsyncClient
from ...overview import Monitor, Overview, WorkerStatus
from ...protocol import Priority
from ...queue_status import QueueStatus
from ..admission.worker_directory import WorkerDirectory
from ..streams.slots import StreamSlots

_FRESH: Final = 0.9
"""Seconds that a view is cached."""


class QueueView(BaseModel):
    """Requests of one priority in a model's queue."""

    model: str
    priority: Priority
    waiting: int
    """Not claimed by a worker."""
    delivered: int
    """Claimed by a worker."""
    oldest_seconds: float | None
    """Waiting time of the oldest."""


class SequenceView(BaseModel):
    """One request at a worker; counts are of tokens. Prefill has computed ``computed`` of ``prompt``."""

    id: str
    priority: int
    state: Literal["waiting", "prefill", "decode"]
    prompt: int
    cached: int
    computed: int
    output: int
    limit: int
    blocks: int


class WorkerView(BaseModel):
    """A worker's last heartbeat.

    ``block_map`` has a character for each ``block_stride``-th block of the KV cache: ``.`` free, ``-`` free
    but in the prefix cache, ``=`` shared, ``*`` of a sequence not listed, else its owner (A to Z, a to z,
    0 to 9, +, /), one of 64 ``sequences``.
    """

    name: str
    model: str
    version: str
    age_seconds: float | None
    running: int
    waiting: int
    tokens_per_second: float
    blocks_total: int
    blocks_free: int
    block_size: int
    block_stride: int
    block_map: str
    sequences: list[SequenceView]


class Percentiles(BaseModel):
    """Seconds, over the most recent requests; None without any."""

    count: int
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


class SystemView(BaseModel):
    queues: list[QueueView]
    workers: list[WorkerView]
    tokens_per_second: float
    blocks_total: int
    blocks_free: int
    time_to_first_token: Percentiles
    streams: int
    """Open on this gateway."""
    complete: bool
    """False until all of the server's keys have been scanned once."""


_SEQUENCES: Final = TypeAdapter(Annotated[list[SequenceView], Field(max_length=1000)])
_TIMES: Final = TypeAdapter(Annotated[list[Annotated[float, Field(ge=0)]], Field(max_length=10_000)])


class SystemWatcher:
    """Makes views, cached for all callers for a second."""

    def __init__(self, client: AsyncClient, worker_directory: WorkerDirectory, slots: StreamSlots) -> None:
        self._monitor = Monitor(client.connection, client.keys)
        self._worker_directory = worker_directory
        self._slots = slots
        self._read_at = -_FRESH
        self._lock = asyncio.Lock()
        self._latest: Overview | None = None

    async def overview(self) -> Overview:
        """Queues and workers. Raises ``Unavailable``."""
        async with self._lock:
            if self._latest is None or monotonic() - self._read_at >= _FRESH:
                self._latest = await self._monitor.look()
                self._read_at = monotonic()
            return self._latest

    async def view(self) -> SystemView:
        """Queues, and workers with their sequences and blocks. Raises ``Unavailable``."""
        overview = await self.overview()
        records = {
            (worker.model, worker.name): worker.fields for worker in await self._worker_directory.alive()
        }
        workers = [
            _worker(worker, records.get((worker.model, worker.name), {})) for worker in overview.workers
        ]
        times = [time for fields in records.values() for time in _parsed(_TIMES, fields.get("first_tokens"))]
        return SystemView(
            queues=[_queue(queue) for queue in overview.queues],
            workers=workers,
            tokens_per_second=sum(worker.tokens_per_second for worker in workers),
            blocks_total=sum(worker.blocks_total for worker in workers),
            blocks_free=sum(worker.blocks_free for worker in workers),
            time_to_first_token=percentiles(time / 1000 for time in times),
            streams=len(self._slots),
            complete=overview.complete,
        )


def percentiles(seconds: Iterable[float]) -> Percentiles:
    """By the nearest rank."""
    ordered = sorted(seconds)
    if not ordered:
        return Percentiles(count=0)
    p50, p90, p99 = (ordered[-(-part * len(ordered) // 100) - 1] for part in (50, 90, 99))
    return Percentiles(count=len(ordered), p50=p50, p90=p90, p99=p99)


def _queue(queue: QueueStatus) -> QueueView:
    return QueueView(
        model=queue.model,
        priority=queue.priority,
        waiting=queue.waiting,
        delivered=queue.delivered,
        oldest_seconds=queue.oldest,
    )


def _worker(worker: WorkerStatus, fields: Mapping[str, str]) -> WorkerView:
    return WorkerView(
        name=worker.name,
        model=worker.model,
        version=worker.version,
        age_seconds=worker.age,
        running=worker.running,
        waiting=worker.waiting,
        tokens_per_second=worker.tokens_per_second,
        blocks_total=worker.blocks_total,
        blocks_free=worker.blocks_free,
        block_size=_count(fields.get("block_size")),
        block_stride=_count(fields.get("block_stride")),
        block_map=fields.get("block_map", ""),
        sequences=_parsed(_SEQUENCES, fields.get("sequences")),
    )


def _parsed(kind: TypeAdapter[list[Any]], text: str | None) -> list[Any]:
    """The field's value; empty if a worker of another version wrote it in another form."""
    try:
        return kind.validate_json(text) if text else []
    except ValidationError:
        return []


def _count(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 19 else 0
