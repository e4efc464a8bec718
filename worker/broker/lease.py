"""Staying alive in the eyes of others: leases renewed as long as the engine makes progress, no longer."""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import anyio

from ...clients.protocol import GROUP
from .clock import Clock
from .connection import Connection
from .entries import Held, Holdings
from .scripts import HEARTBEAT
from .settings import BrokerSettings, milliseconds

log = logging.getLogger(__name__)

Record = Mapping[str, str | int | float]


class Leases:
    """Renews the leases of held entries, and this worker's record, every third of a lease.

    ``record`` gives the record's fields. While ``progressing`` says no, nothing is renewed, so that others
    take the requests over: an engine that hangs must not keep them. ``on_lost`` is told of entries that have
    gone to another worker; ``on_renewed`` is called after each renewal, with the number of strays: entries
    that this consumer owned without holding them, now free to be taken over.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        connection: Connection,
        holdings: Holdings,
        clock: Clock,
        consumer: str,
        *,
        lock: anyio.Lock,
        record: Callable[[], Record],
        progressing: Callable[[], bool],
        on_lost: Callable[[Held], None],
        on_renewed: Callable[[int], None],
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._holdings = holdings
        self._clock = clock
        self._consumer = consumer
        self._lock = lock
        self._record = record
        self._progressing = progressing
        self._on_lost = on_lost
        self._on_renewed = on_renewed
        queues = settings.keys.queues(settings.model)
        self._keys = [*queues, settings.keys.worker(settings.model, settings.name)]
        self._kick = anyio.Event()
        self.renewed_at = -math.inf
        """When Redis last heard that this worker is alive, of the monotonic clock."""

    def renew_now(self) -> None:
        self._kick.set()

    async def run(self) -> None:
        """Renew until cancelled."""
        stalled = False
        while True:
            self._kick = anyio.Event()
            if self._progressing():
                stalled = False
                strays = await self._connection.retrying("renewing leases", self.renew)
                self._on_renewed(strays)
            elif not stalled:
                stalled = True
                held = len(self._holdings.entries)
                log.error("the engine makes no progress: the leases of %d requests are left to expire", held)
            with anyio.move_on_after(self._settings.lease / 3):
                await self._kick.wait()

    async def renew(self) -> int:
        """Renew once; returns the number of strays. Raises ``redis.RedisError``."""
        if not self._progressing():  # it may have stopped while Redis was away
            return 0
        strays = await self._beat(self._record())
        self.renewed_at = time.monotonic()
        return strays

    async def give_back(self) -> int:
        """Make everything this consumer owns and does not hold free for others at once.

        Raises ``redis.RedisError``.
        """
        return await self._beat({})

    async def _beat(self, record: Record) -> int:
        async with self._lock:
            held: defaultdict[int, list[str]] = defaultdict(list)
            for stream, entry_id in self._holdings.entries:
                held[stream].append(entry_id)
            fields = [part for field in record.items() for part in field]
            arguments: list[str | float] = [
                GROUP,
                self._consumer,
                milliseconds(self._settings.lease),
                len(record),
                *fields,
            ]
            for stream in range(len(self._keys) - 1):
                arguments += [len(held[stream]), *held[stream]]
            reply: list[Any] = await self._connection.run(HEARTBEAT, self._keys, arguments)
            now, lost, strays = reply
            self._clock.told(now)
            for stream, entry_id in lost:
                entry = self._holdings.entries.get((stream - 1, entry_id.decode()))
                if entry is not None:
                    self._on_lost(entry)
        return strays
