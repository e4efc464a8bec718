"""The state of the system, as ``/v1/overview`` tells it."""

from collections.abc import Sequence
from math import ceil
from typing import Literal

from pydantic import BaseModel

from ..activity import SequenceStatus
from ..overview import Overview, WorkerStatus
from ..protocol import Priority


class QueueView(BaseModel):
    model: str
    priority: Priority
    waiting: int
    """With no worker yet."""
    taken: int
    oldest: float | None
    """Longest wait, in seconds."""


class PercentilesView(BaseModel):
    """Milliseconds, of the last minute's requests."""

    p50: float
    p95: float
    p99: float
    count: int


class BlocksView(BaseModel):
    total: int
    free: int
    size: int
    """Tokens in a block; 0 if the worker does not tell."""
    stride: int
    map: str
    """A character for each `stride`-th block: `.` free, `-` free with content that can be found again, `=`
    shared, `*` of a sequence not listed, else A to Z, a to z, 0 to 9, + or / for the first to the 64th of
    `sequences`."""


class WorkerView(BaseModel):
    name: str
    model: str
    version: str
    running: int
    waiting: int
    tokens_per_second: float
    age: float | None
    """Seconds since it last said something."""
    uptime: float | None
    first_token: PercentilesView | None
    blocks: BlocksView
    sequences: list[SequenceStatus]
    """The most urgent ones, those running first."""


class OverviewView(BaseModel):
    object: Literal["overview"] = "overview"
    complete: bool
    """False as long as there may be queues and workers that were not found yet."""
    queues: list[QueueView]
    workers: list[WorkerView]
    first_token: PercentilesView | None
    """Of all workers."""


def overview_view(overview: Overview) -> OverviewView:
    times = [time for worker in overview.workers for time in worker.activity.first_tokens]
    return OverviewView(
        complete=overview.complete,
        queues=[
            QueueView(
                model=queue.model,
                priority=queue.priority,
                waiting=queue.waiting,
                taken=queue.delivered,
                oldest=queue.oldest,
            )
            for queue in overview.queues
        ],
        workers=[_worker(worker) for worker in overview.workers],
        first_token=percentiles(times),
    )


def _worker(worker: WorkerStatus) -> WorkerView:
    activity = worker.activity
    return WorkerView(
        name=worker.name,
        model=worker.model,
        version=worker.version,
        running=worker.running,
        waiting=worker.waiting,
        tokens_per_second=worker.tokens_per_second,
        age=worker.age,
        uptime=worker.uptime,
        first_token=percentiles(activity.first_tokens),
        blocks=BlocksView(
            total=worker.blocks_total,
            free=worker.blocks_free,
            size=activity.block_size,
            stride=activity.block_stride,
            map=activity.block_map,
        ),
        sequences=activity.sequences,
    )


def percentiles(times: Sequence[float]) -> PercentilesView | None:
    """By the nearest rank: each is a time that was measured."""
    if not times:
        return None
    ordered = sorted(times)

    def rank(share: float) -> float:
        return ordered[max(0, ceil(share * len(ordered)) - 1)]

    return PercentilesView(p50=rank(0.5), p95=rank(0.95), p99=rank(0.99), count=len(ordered))
