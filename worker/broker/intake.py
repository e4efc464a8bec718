"""From the queue to the serve loop: never more than there is room for, and at once when something arrives."""

from collections import deque
from collections.abc import Callable

import anyio

from .arrivals import Arrivals
from .claiming import Claimer
from .connection import FAILURES, Connection
from .control import Control
from .entries import Claim, Held, Holdings, Unrun
from .orphans import Orphans
from .outbox import Outbox
from .settings import BrokerSettings

Room = tuple[int, int, int]


class Intake:
    """Takes entries, orphans before new ones, claims them, and hands claims out in the order taken.

    ``lock`` keeps the heartbeat from seeing entries whose arrival here is still under way; ``on_gap`` is
    called when a reply was lost that may have brought some.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        connection: Connection,
        holdings: Holdings,
        outbox: Outbox,
        control: Control,
        claimer: Claimer,
        orphans: Orphans,
        consumer: str,
        *,
        lock: anyio.Lock,
        on_gap: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._holdings = holdings
        self._outbox = outbox
        self._control = control
        self._claimer = claimer
        self._orphans = orphans
        self._arrivals = Arrivals(settings, connection, holdings, consumer, wake=self._wake_up)
        self._lock = lock
        self._on_gap = on_gap
        self._room: Room = (0, 0, 0)
        self._spent = 0
        self._left: Room = (0, 0, 0)
        self._unclaimed: list[Held] = []
        self._claims: deque[Claim] = deque()
        self._handed_out = anyio.Event()
        self._stopped = False
        self._running = False
        self._ended = anyio.Event()
        self._wake = anyio.Event()

    def offer(self, room: Room, waiting: int = 0) -> None:
        """Say how many more requests the engine could admit now: high, high or normal, and any.

        ``waiting`` is how many claims the serve loop has received and not added to the engine. What the
        intake itself has under way it takes off on its own.
        """
        self._room = room
        self._spent = waiting + len(self._claims) + len(self._unclaimed)
        if (
            self._claimer.may_claim_a_suspect
            or self._until_sweep() == 0
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
            held = self._holdings.of(claim.request.id, claim.epoch)
            if held is not None and held.end is None:
                held.running = True
                return claim
            if held is not None and held.end is not None:
                self._outbox.end(held, Unrun.of(claim, held.end))
            # An idle serve loop offers nothing anew, so what this one took up must be given back here.
            self._spent = max(0, self._spent - 1)
            self._wake_up()

    def sweep_now(self) -> None:
        """Another worker has given requests back."""
        self._orphans.now()
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
                if self.pulled or self._claimer.may_claim_a_suspect:
                    await self.claim()
                else:
                    await self._until_woken()
            self._claimer.drop_suspects()
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
        """Take entries as far as there is room: orphans if a sweep is due, then new ones.

        Raises ``redis.RedisError``; what was taken before that is kept.
        """
        async with self._lock:
            try:
                if self._until_sweep() == 0 and not self._stopped:
                    room = self._available()
                    self._took(await self._orphans.sweep(room, self._claimer.room_for_suspects))
                    await self._orphans.prune()
                if any(self._available()) and not self._stopped:
                    self._took(await self._arrivals.take(self._available()))
            except FAILURES:
                self._on_gap()
                raise
            finally:
                self._left = self._available()

    def _took(self, held: list[Held]) -> None:
        self._unclaimed += held
        self._spent += len(held)

    async def claim(self) -> None:
        """Claim what was pulled; repeats until Redis has decided about all of it."""
        claims = await self._claimer.claim(self._unclaimed)
        self._spent -= len(self._unclaimed) - len(claims)
        self._unclaimed = []
        self._claims += claims
        self._handed_out.set()
        self._handed_out = anyio.Event()

    async def _until_woken(self) -> None:
        until_sweep = self._until_sweep()
        with anyio.move_on_after(None if until_sweep is None else max(0.01, until_sweep)):
            await self._wake.wait()

    def _until_sweep(self) -> float | None:
        """Seconds; None while there is no room."""
        return self._orphans.seconds_until_due(self._available(), self._claimer.room_for_suspects)

    def _available(self) -> Room:
        high, normal, low = (max(0, room - self._spent) for room in self._room)
        return high, normal, low

    def _wake_up(self) -> None:
        self._wake.set()
