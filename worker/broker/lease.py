"""Staying alive in the eyes of others: leases renewed as long as the engine makes progress, no longer."""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio

from ...clients.protocol import GROUP
from .clock import Clock
from .connection import FAILURES, Connection, error_kind, is_transient
from .contact import Contact
from .entries import OwnedEntries, OwnedEntry
from .put_back import put_back
from .scripts import EXCUSE, HEARTBEAT
from .settings import BrokerSettings, milliseconds

log = logging.getLogger(__name__)

Record = Mapping[str, str | int | float]

_LONGEST_PAUSE: Final = 1.0
"""Seconds between tries while Redis is away, and no more than a sixth of a lease: once it answers, owners
have to renew before other workers may reclaim their entries."""

_TICK: Final = 1 / 24
"""Of a lease: how finely the time spent waiting for Redis is counted."""


class Leases:
    """Renews the leases of owned entries, and this worker's record, every third of a lease.

    ``record`` gives the record's fields. While ``progressing`` says no, nothing is renewed, so that others
    take the requests over: an engine that hangs must not keep them. ``on_lost`` is told of entries that have
    gone to another worker; ``on_renewed`` is called after each renewal, with the number of untracked: entries
    that this consumer owned without holding them, now free to be taken over; and whether ``contact`` has
    begun anew.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        connection: Connection,
        owned_entries: OwnedEntries,
        clock: Clock,
        contact: Contact,
        consumer: str,
        *,
        lock: anyio.Lock,
        record: Callable[[], Record],
        progressing: Callable[[], bool],
        on_lost: Callable[[OwnedEntry], None],
        on_renewed: Callable[[int, bool], None],
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._owned = owned_entries
        self._clock = clock
        self._contact = contact
        self._consumer = consumer
        self._lock = lock
        self._record = record
        self._progressing = progressing
        self._on_lost = on_lost
        self._on_renewed = on_renewed
        queues = settings.keys.queues(settings.model)
        self._keys = [*queues, settings.keys.worker(settings.model, settings.name)]
        self._kick = anyio.Event()
        self._began = time.monotonic()
        self._trying = False
        self._refused = False
        self._waited = 0.0
        self._cut_off_until = -math.inf
        self._excuses: dict[str, int] = {}
        self.renewed_at = -math.inf
        """When Redis last heard that this worker is alive, of the monotonic clock."""

    def renew_now(self) -> None:
        self._kick.set()

    def excuse(self, owned: OwnedEntry) -> None:
        """Another worker has this claim's entry. If that is because Redis could not be reached, see to it
        that the attempt is not charged: this worker did not fall silent over the request.
        """
        cut_off = self._hindered or time.monotonic() - self._cut_off_until < self._settings.lease
        if owned.request_id is not None and cut_off:
            self._excuses[owned.request_id] = owned.epoch

    async def run(self) -> None:
        """Renew until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._count_waiting)
            await self._keep_renewing()

    async def _keep_renewing(self) -> None:
        stalled = False
        while True:
            self._kick = anyio.Event()
            if self._progressing():
                stalled = False
                await self._connection.retrying("renewing leases", self.renew, self._longest_pause)
                await self._send_excuses()
            elif not stalled:
                stalled = True
                owned = len(self._owned.entries)
                log.error("the engine makes no progress: the leases of %d requests are left to expire", owned)
            with anyio.move_on_after(self._settings.lease / 3):
                await self._kick.wait()

    async def renew(self) -> None:
        """Renew once. Raises ``redis.RedisError``."""
        if not self._progressing():  # it may have stopped while Redis was away
            self._trying, self._refused, self._waited = False, False, 0.0
            return
        self._trying = True
        try:
            now, untracked, missing = await self._beat(self._record())
        except FAILURES as error:
            # A time limit also ends where this process stood still; what it waited for is counted anyway.
            self._refused |= error_kind(error) != "timeout"
            raise
        self.renewed_at = time.monotonic()
        hindered = self._hindered
        if hindered:
            self._cut_off_until = self.renewed_at
        self._trying, self._refused, self._waited = False, False, 0.0
        self._on_renewed(untracked, self._contact.note(now, hindered=hindered))
        if missing:
            await self._put_back(missing)

    async def give_back(self) -> int:
        """Make everything this consumer owns and does not hold free for others at once.

        Raises ``redis.RedisError``.
        """
        return (await self._beat({}))[1]

    @property
    def _longest_pause(self) -> float:
        return min(_LONGEST_PAUSE, self._settings.lease / 6)

    @property
    def _hindered(self) -> bool:
        """Redis, not this process, has kept the lease from being renewed in time."""
        return self._refused or self._waited >= self._settings.lease / 2

    async def _count_waiting(self) -> None:
        """Count the time in which Redis could have answered. While this process itself stands still, because
        of what it runs or of a busy machine, no more than a tick of it is counted.
        """
        tick = self._settings.lease * _TICK
        while True:
            await anyio.sleep(tick)
            if self._trying:
                self._waited += tick

    async def _send_excuses(self) -> None:
        """What fails is sent again after the next renewal."""
        excuses = list(self._excuses.items())
        keys = self._settings.keys
        calls = [EXCUSE.call([keys.request(name)], [epoch, self._consumer]) for name, epoch in excuses]
        try:
            replies = await self._connection.batch(calls) if calls else []
        except FAILURES:
            return
        for (name, epoch), reply in zip(excuses, replies, strict=True):
            settled = not isinstance(reply, Exception) or not is_transient(reply)
            if settled and self._excuses.get(name) == epoch:
                del self._excuses[name]

    async def _put_back(self, missing: list[OwnedEntry]) -> None:
        """What fails is missing at the next renewal still."""
        async with self._lock:
            try:
                await put_back(self._settings, self._connection, self._owned, self._consumer, missing)
            except FAILURES as error:
                self._connection.report("putting entries back", error)

    async def _beat(self, record: Record) -> tuple[int, int, list[OwnedEntry]]:
        """Redis's time in milliseconds, the number of untracked, and what was deleted from the queue."""
        async with self._lock:
            owned: defaultdict[int, list[str]] = defaultdict(list)
            for stream, entry_id in self._owned.entries:
                owned[stream].append(entry_id)
            fields = [part for field in record.items() for part in field]
            arguments: list[str | float] = [
                GROUP,
                self._consumer,
                milliseconds(self._settings.lease),
                milliseconds(time.monotonic() - self._began),
                len(record),
                *fields,
            ]
            for stream in range(len(self._keys) - 1):
                arguments += [len(owned[stream]), *owned[stream]]
            reply: list[Any] = await self._connection.run(HEARTBEAT, self._keys, arguments)
            now, lost, untracked, gone = reply
            self._clock.sync(now)
            for stream, entry_id in lost:
                entry = self._owned.entries.get((stream - 1, entry_id.decode()))
                if entry is not None:
                    self._on_lost(entry)
            missing = [
                entry
                for stream, entry_id in gone
                if (entry := self._owned.entries.get((stream - 1, entry_id.decode()))) is not None
            ]
        return now, untracked, missing
