"""Intake of queue entries: never more than the engine's credits, and at once when something arrives."""

from collections import deque
from collections.abc import Callable

import anyio

from .arrivals import Arrivals
from .claiming import Claimer
from .connection import FAILURES, Connection
from .control import Control
from .entries import Claim, OwnedEntries, OwnedEntry, UnrunResult
from .outbox import Outbox
from .reclaim import Reclaimer
from .settings import BrokerSettings

Credits = tuple[int, int, int]


class Intake:
    """Takes entries, expired entries before new ones, claims them, and hands claims out in the order taken.

    ``lock`` keeps the heartbeat from seeing entries whose arrival here is still under way; ``on_gap`` is
    called when a reply was lost that may have brought some.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        connection: Connection,
        owned_entries: OwnedEntries,
        outbox: Outbox,
        control: Control,
        claimer: Claimer,
        reclaimer: Reclaimer,
        consumer: str,
        *,
        lock: anyio.Lock,
        on_gap: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._owned = owned_entries
        self._outbox = outbox
        self._control = control
        self._claimer = claimer
        self._reclaimer = reclaimer
        self._arrivals = Arrivals(settings, connection, owned_entries, consumer, wake=self._wake_up)
        self._lock = lock
        self._on_gap = on_gap
        self._credits: Credits = (0, 0, 0)
        self._spent = 0
        self._left: Credits = (0, 0, 0)
        self._unclaimed: list[OwnedEntry] = []
        self._claims: deque[Claim] = deque()
        self._handed_out = anyio.Event()
        self._stopped = False
        self._running = False
        self._ended = anyio.Event()
        self._wake = anyio.Event()

    def offer(self, capacity: Credits, waiting: int = 0) -> None:
        """Say how many more requests the engine could admit now: high, high or normal, and any.

        ``waiting`` is how many claims the serve loop has received and not added to the engine. What the
        intake itself has under way it takes off on its own.
        """
        self._credits = capacity
        self._spent = waiting + len(self._claims) + len(self._unclaimed)
        if (
            self._claimer.may_claim_quarantined
            or self._until_reclaim() == 0
            or any(now > before for now, before in zip(self._available(), self._left, strict=True))
        ):
            self._wake_up()

    async def next_claim(self) -> Claim:
        """The next request to run; waits for one. Those that ended while they waited here are passed over."""
        while True:
            while not self._claims:
                await self._handed_out.wait()
            # Otherwise the loss of an earlier claim, told later, would hit this one.
            await self._control.dropped(self._claims[0].request.id)
            claim = self._claims.popleft()
            owned = self._owned.of(claim.request.id, claim.epoch)
            if owned is not None and owned.end is None:
                owned.running = True
                return claim
            if owned is not None and owned.end is not None:
                self._outbox.end(owned, UnrunResult.of(claim, owned.end))
            # An idle serve loop offers nothing anew, so what this one took up must be given back here.
            self._spent = max(0, self._spent - 1)
            self._wake_up()

    def reclaim_now(self) -> None:
        """Another worker has given requests back."""
        self._reclaimer.now()
        self._wake_up()

    def stop(self) -> None:
        """Take nothing more. Claims already made can still be received."""
        self._stopped = True
        self._wake_up()

    async def stopped(self) -> None:
        """Stop, and wait until nothing is on its way here from the queue."""
        self.stop()
        if self._running:
            await self._ended.wait()

    async def run(self) -> None:
        """Take and claim until stopped."""
        self._running = True
        try:
            await self._take_and_claim()
        finally:
            self._running = False
            self._ended.set()

    async def _take_and_claim(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._arrivals.watch)
            while not self._stopped:
                self._wake = anyio.Event()
                await self._connection.retrying("taking requests", self.pull)
                if self.pulled or self._claimer.may_claim_quarantined:
                    await self.claim()
                else:
                    await self._until_woken()
            self._claimer.drop_quarantined()
            tasks.cancel_scope.cancel()

    @property
    def pulled(self) -> int:
        """Entries taken and not yet claimed."""
        return len(self._unclaimed)

    @property
    def ready(self) -> int:
        """Claims not yet handed out."""
        return len(self._claims)

    async def pull(self) -> None:
        """Take entries as far as credits allow: expired entries if a reclaim is due, then new ones.

        Raises ``redis.RedisError``; what was taken before that is kept.
        """
        async with self._lock:
            try:
                if self._until_reclaim() == 0 and not self._stopped:
                    capacity = self._available()
                    self._took(await self._reclaimer.reclaim(capacity, self._claimer.quarantine_credits))
                    await self._reclaimer.prune()
                if any(self._available()) and not self._stopped:
                    self._took(await self._arrivals.take(self._available()))
            except FAILURES:
                self._on_gap()
                raise
            finally:
                self._left = self._available()

    def _took(self, owned: list[OwnedEntry]) -> None:
        self._unclaimed += owned
        self._spent += len(owned)

    async def claim(self) -> None:
        """Claim what was pulled; repeats until Redis has decided about all of it."""
        claims = await self._claimer.claim(self._unclaimed)
        self._spent -= len(self._unclaimed) - len(claims)
        self._unclaimed = []
        self._claims += claims
        self._handed_out.set()
        self._handed_out = anyio.Event()

    async def _until_woken(self) -> None:
        until_reclaim = self._until_reclaim()
        with anyio.move_on_after(None if until_reclaim is None else max(0.01, until_reclaim)):
            await self._wake.wait()

    def _until_reclaim(self) -> float | None:
        """Seconds; None without credits."""
        return self._reclaimer.seconds_until_due(self._available(), self._claimer.quarantine_credits)

    def _available(self) -> Credits:
        high, normal, low = (max(0, number - self._spent) for number in self._credits)
        return high, normal, low

    def _wake_up(self) -> None:
        self._wake.set()
