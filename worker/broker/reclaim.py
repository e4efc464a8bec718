"""Reclaim of entries whose lease has expired, by any worker with credits."""

from collections.abc import Sequence
from typing import Any

import anyio

from ...clients.jitter import jittered
from ...clients.protocol import GROUP, LANES, PRIORITIES
from .connection import Connection
from .contact import Contact
from .entries import Entry, OwnedEntries, OwnedEntry
from .scripts import PRUNE, RECLAIM
from .settings import BrokerSettings, milliseconds

QUARANTINE_AFTER = 2
"""Attempts that ended in silence after which a request may be what kills its workers. An entry that was
delivered so often may be that of such a request; only a claim can tell."""
_PRUNE_EVERY = 600.0
_FORGET_CONSUMERS_AFTER = 3600.0


class Reclaimer:
    """Reclaims entries of all queues of a model, a part at a time, going on where the last call ended.

    Of requests in quarantine it takes one at a time, and only where ``quarantined`` says that one may be run:
    the others are left to whichever worker comes to be free for one.

    While ``contact`` shows that others may not have been able to renew their leases it takes nothing over.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        connection: Connection,
        owned_entries: OwnedEntries,
        contact: Contact,
        consumer: str,
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._owned = owned_entries
        self._contact = contact
        self._consumer = consumer
        self._queues = settings.keys.queues(settings.model)
        self._cursors: list[bytes] = [b"0-0"] * len(self._queues)
        self._due = [0.0] * len(PRIORITIES)
        self._passed_over = [False] * len(PRIORITIES)
        self._prune_due = anyio.current_time() + _PRUNE_EVERY

    def seconds_until_due(self, capacity: Sequence[int], quarantined: int) -> float | None:
        """Until the next reclaim of a priority with credits; None without any."""
        due = [
            0.0 if quarantined and passed_over else due
            for due, passed_over, allowed in zip(self._due, self._passed_over, capacity, strict=True)
            if allowed > 0
        ]
        return max(0.0, min(due) - anyio.current_time()) if due else None

    def now(self) -> None:
        """Reclaim as soon as there are credits."""
        self._due = [0.0] * len(PRIORITIES)

    async def reclaim(self, capacity: Sequence[int], quarantined: int) -> list[OwnedEntry]:
        """Take over at most ``capacity`` entries whose lease has expired (by priority, see ``Intake.offer``);
        at most ``quarantined`` of them may be such.

        A priority stays due until all of its expired entries have been taken: under load new requests would
        otherwise get all the capacity there ever is. Raises ``redis.RedisError``; what was taken over is then
        untracked, and the heartbeat finds it.
        """
        settings, contact = self._settings, self._contact
        begun = self._cursors
        lease = milliseconds(settings.lease)
        times = (contact.renewed or 0, contact.since, contact.outage)
        arguments = [GROUP, self._consumer, lease, *capacity, quarantined, QUARANTINE_AFTER, *times, *begun]
        reply: list[Any] | None = await self._connection.run(RECLAIM, self._queues, arguments)
        if reply is None:
            self._due = [anyio.current_time() + settings.lease / 12] * len(PRIORITIES)
            return []
        found, self._cursors, passed_over = reply
        pause = jittered(settings.lease / 3, 0.8)
        for priority, (allowed, left) in enumerate(zip(capacity, passed_over, strict=True)):
            lanes = slice(priority * LANES, (priority + 1) * LANES)
            ended = all(cursor == b"0-0" for cursor in self._cursors[lanes])
            if len(found) < allowed and ended:
                self._due[priority] = anyio.current_time() + pause
                whole = all(cursor == b"0-0" for cursor in begun[lanes])
                self._passed_over[priority] = left > 0 or (self._passed_over[priority] and not whole)
            else:
                self._passed_over[priority] |= left > 0
        taken: list[OwnedEntry] = []
        for stream, entry_id, body, deliveries, excused in found:
            entry = Entry(stream - 1, entry_id.decode(), deliveries, excused=excused == 1)
            owned = self._owned.take(entry, body)
            if owned is not None:
                self._connection.counters.redelivered += 1
                taken.append(owned)
        return taken

    async def prune(self) -> None:
        """Now and then, forget consumers of workers that are long gone. Raises ``redis.RedisError``."""
        if anyio.current_time() >= self._prune_due:
            arguments = [GROUP, milliseconds(_FORGET_CONSUMERS_AFTER)]
            await self._connection.run(PRUNE, self._queues, arguments)
            self._prune_due = anyio.current_time() + _PRUNE_EVERY
