"""The broker of one worker: everything between Redis and the serve loop."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio

from ...clients.protocol import FinishReason
from .claiming import Claimer
from .clock import Clock
from .connection import Connection
from .contact import Contact
from .control import Control
from .counters import Counters
from .drain import hand_back
from .entries import Claim, OwnedEntries, OwnedEntry, UnrunResult
from .handover import Handover
from .intake import Intake
from .lease import Leases, Record
from .outbox import Outbox
from .presence import Presence
from .queue_watch import QueueWatch
from .reclaim import Reclaimer
from .search import Search
from .settings import BrokerSettings, consumer_name


class Broker:
    """Wires the parts together; the serve loop talks to ``intake``, ``control``, ``outbox`` and
    ``handover``.

    Create it with ``open_broker``. ``record`` gives the fields of the worker's record in Redis, and
    ``progressing`` says whether the engine is alive; see ``Leases``.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        connection: Connection,
        *,
        record: Callable[[], Record],
        progressing: Callable[[], bool],
    ) -> None:
        self.settings = settings
        self.counters: Counters = connection.counters
        self.clock = Clock()
        self.consumer = consumer_name(settings.name)
        self._connection = connection
        self._owned = OwnedEntries()
        lock = anyio.Lock()
        self.outbox = Outbox(
            settings,
            connection,
            self._owned,
            self.consumer,
            on_lost=self._lost,
            on_cancel=self._cancelled,
        )
        self._search = Search(settings, connection, self._owned)
        self.control = Control(
            settings,
            connection,
            self._owned,
            self.clock,
            self.consumer,
            on_gap=self._reconnected,
            on_released=self._released,
            on_missing=self._search.probe,
        )
        claimer = Claimer(
            settings, connection, self._owned, self.outbox, self.control, self.clock, self.consumer
        )
        contact = Contact(settings.lease)
        reclaimer = Reclaimer(settings, connection, self._owned, contact, self.consumer)
        self.leases = Leases(
            settings,
            connection,
            self._owned,
            self.clock,
            contact,
            self.consumer,
            lock=lock,
            record=record,
            progressing=progressing,
            on_lost=self._taken_away,
            on_renewed=self._renewed,
        )
        self.handover = Handover(settings, connection, self._owned, self.consumer, self.outbox, self.leases)
        self._presence = Presence(settings, connection, record=record, progressing=progressing)
        self.queue_watch = QueueWatch(settings, connection)
        self.intake = Intake(
            settings,
            connection,
            self._owned,
            self.outbox,
            self.control,
            claimer,
            reclaimer,
            self.consumer,
            lock=lock,
            on_gap=self.leases.renew_now,
        )

    @property
    def num_owned(self) -> int:
        """Requests in this worker's hands, ended ones included until they are off the queue."""
        return len(self._owned.entries)

    async def run(self) -> None:
        """All background work, until cancelled. No failure of Redis ends it."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.outbox.run)
            tasks.start_soon(self.leases.run)
            tasks.start_soon(self._presence.run)
            tasks.start_soon(self.control.run)
            tasks.start_soon(self.handover.run)
            tasks.start_soon(self._search.run)
            tasks.start_soon(self.intake.run)

    def end(self, claim: Claim, reason: FinishReason) -> None:
        """End a claim that never reached the engine: cancelled or expired before its turn."""
        self.outbox.put([], [UnrunResult.of(claim, reason)])

    def reject(self, claim: Claim, code: str, message: str) -> None:
        """End a claim that the engine cannot run, such as a prompt that is too long, with an error."""
        self.outbox.put([], [UnrunResult.of(claim, "error", code, message)])

    async def hand_back(self) -> int:
        """Stop the intake and release every owned entry; see ``drain.hand_back``. Flush the outbox before."""
        await self.intake.stopped()
        return await hand_back(
            self.settings, self._connection, self._owned, self.consumer, self.outbox, self.leases
        )

    def _lost(self, owned: OwnedEntry) -> None:
        if owned.superseded:
            self.leases.excuse(owned)
        self.control.lost(owned)

    def _taken_away(self, owned: OwnedEntry) -> None:
        self.leases.excuse(owned)
        self.counters.lost_claims += 1
        self.outbox.forget(owned)
        self.control.lost(owned)

    def _cancelled(self, owned: OwnedEntry) -> None:
        self.control.cancelled(owned)

    def _reconnected(self) -> None:
        self.outbox.probe()
        self.leases.renew_now()  # a server that lost its data has no record of this worker

    def _released(self) -> None:
        self.intake.reclaim_now()

    def _renewed(self, untracked: int, anew: bool) -> None:
        self.outbox.probe()
        if untracked or anew:
            self.intake.reclaim_now()


@asynccontextmanager
async def open_broker(
    settings: BrokerSettings,
    *,
    record: Callable[[], Record] = dict,
    progressing: Callable[[], bool] = lambda: True,
) -> AsyncGenerator[Broker]:
    """A broker on its own connections; start its ``run`` in a task group inside."""
    connection = Connection(settings.url, Counters(), settings.timeout)
    try:
        yield Broker(settings, connection, record=record, progressing=progressing)
    finally:
        await connection.aclose()
