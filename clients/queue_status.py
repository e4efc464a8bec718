"""How full a model's queues are, and how long their oldest request has waited."""

from dataclasses import dataclass
from typing import Any

from .protocol import PRIORITIES, Priority


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One priority of one model's queue, over all lanes. ``oldest`` is the longest wait in seconds."""

    model: str
    priority: Priority
    waiting: int
    delivered: int
    oldest: float | None


def queue_statuses(model: str, reply: list[Any]) -> list[QueueStatus]:
    """By priority, what the script ``depth`` found for ``model``."""
    now, *levels = reply
    return [
        QueueStatus(
            model=model,
            priority=priority,
            waiting=max(0, entries - delivered),
            delivered=delivered,
            oldest=max(0, now - int(oldest.partition(b"-")[0])) / 1000 if oldest else None,
        )
        for priority, (entries, delivered, oldest) in zip(PRIORITIES, levels, strict=True)
    ]
