"""Entries of workers that have gone silent: taken over by whoever has room."""

from collections.abc import Sequence
from typing import Any

import anyio

from ...clients.jitter import jittered
from ...clients.protocol import GROUP, LANES, PRIORITIES
from .connection import Connection
from .entries import Entry, Held, Holdings
from .scripts import PRUNE, SWEEP
from .settings import BrokerSettings, milliseconds

_PRUNE_EVERY = 600.0
_FORGET_CONSUMERS_AFTER = 3600.0


class Orphans:
    """Sweeps all queues of a model, a part at a time, going on where the last sweep ended."""

    def __init__(
        self, settings: BrokerSettings, connection: Connection, holdings: Holdings, consumer: str
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._holdings = holdings
        self._consumer = consumer
        self._queues = settings.keys.queues(settings.model)
        self._cursors: list[bytes] = [b"0-0"] * len(self._queues)
        self._due = [0.0] * len(PRIORITIES)
        self._prune_due = anyio.current_time() + _PRUNE_EVERY

    def seconds_until_due(self, room: Sequence[int]) -> float | None:
        """Until the next sweep of a priority for which there is room; None without any."""
        due = [due for due, allowed in zip(self._due, room, strict=True) if allowed > 0]
        return max(0.0, min(due) - anyio.current_time()) if due else None

    def now(self) -> None:
        """Sweep as soon as there is room."""
        self._due = [0.0] * len(PRIORITIES)

    async def sweep(self, room: Sequence[int]) -> list[Held]:
        """Take over at most ``room`` orphans (by priority, see ``Intake.offer``).

        A priority stays due until all of its orphans have been taken: under load new requests would
        otherwise get all the room there ever is. Raises ``redis.RedisError``; what was taken over then is a
        stray, which the heartbeat finds.
        """
        settings = self._settings
        arguments = [GROUP, self._consumer, milliseconds(settings.lease), *room, *self._cursors]
        reply: list[Any] = await self._connection.run(SWEEP, self._queues, arguments)
        found, self._cursors = reply
        pause = jittered(settings.lease / 3, 0.8)
        for priority, allowed in enumerate(room):
            cursors = self._cursors[priority * LANES : (priority + 1) * LANES]
            if len(found) < allowed and all(cursor == b"0-0" for cursor in cursors):
                self._due[priority] = anyio.current_time() + pause
        taken: list[Held] = []
        for stream, entry_id, body, deliveries in found:
            held = self._holdings.take(Entry(stream - 1, entry_id.decode(), deliveries), body)
            if held is not None:
                self._connection.counters.redelivered += 1
                taken.append(held)
        return taken

    async def prune(self) -> None:
        """Now and then, forget consumers of workers that are long gone. Raises ``redis.RedisError``."""
        if anyio.current_time() >= self._prune_due:
            arguments = [GROUP, milliseconds(_FORGET_CONSUMERS_AFTER)]
            await self._connection.run(PRUNE, self._queues, arguments)
            self._prune_due = anyio.current_time() + _PRUNE_EVERY
