"""From the queue to the serve loop: never more than there is room for, and at once when something arrives."""

from collections import deque
from collections.abc import Callable
from typing import Any

import anyio

from ...clients.protocol import GROUP
from .claiming import Claimer
from .connection import FAILURES, Backoff, Connection
from .entries import Claim, Entry, Held, Holdings
from .orphans import Orphans
from .scripts import TAKE
from .settings import SERVICE_TTL, BrokerSettings, milliseconds

Room = tuple[int, int, int]


class Intake:
    """Takes entries by script, claims them, and hands claims out in the order taken.

    The queue is not polled: a take that finds nothing leaves behind where each stream ended, and a blocking
    read waits for the first entry after that. It reads without the group, so it takes nothing; the next
    take decides who gets what.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        connection: Connection,
        holdings: Holdings,
        claimer: Claimer,
        orphans: Orphans,
        consumer: str,
        *,
        lock: anyio.Lock,
        on_gap: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._holdings = holdings
        self._claimer = claimer
        self._orphans = orphans
        self._queues = settings.keys.queues(settings.model)
        self._keys = [*self._queues, settings.keys.service(settings.model)]
        ageing, ttl = milliseconds(settings.ageing), milliseconds(SERVICE_TTL)
        self._arguments: list[bytes | str | int] = [GROUP, consumer, ageing, ttl]
        self._lock = lock
        self._on_gap = on_gap
        self._room: Room = (0, 0, 0)
        self._spent = 0
        self._left: Room = (0, 0, 0)
        self._unclaimed: list[Held] = []
        self._claims: deque[Claim] = deque()
        self._handed_out = anyio.Event()
        self._stopped = False
        self._wake = anyio.Event()
        self._watcher = _Watcher(connection, self._wake_up)

    def offer(self, room: Room, waiting: int = 0) -> None:
        """Say how many more requests the engine could admit now: high, high or normal, and any.

        ``waiting`` is how many claims the serve loop has received and not added to the engine. What the
        intake itself has under way it takes off on its own.
        """
        self._room = room
        self._spent = waiting + len(self._claims) + len(self._unclaimed)
        if any(now > before for now, before in zip(self._available(), self._left, strict=True)):
            self._wake_up()

    async def next_claim(self) -> Claim:
        """The next request to run; waits for one."""
        while not self._claims:
            await self._handed_out.wait()
        return self._claims.popleft()

    def sweep_now(self) -> None:
        """Another worker has given requests back."""
        self._orphans.now()
        self._wake_up()

    def stop(self) -> None:
        """Take nothing more. Claims already made can still be received."""
        self._stopped = True
        self._wake_up()

    async def run(self) -> None:
        """Take and claim until stopped."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watcher.run)
            while not self._stopped:
                self._wake = anyio.Event()
                await self._connection.retrying("taking requests", self._take_some)
                if self._unclaimed:
                    await self._claim()
                else:
                    await self._until_woken()
            tasks.cancel_scope.cancel()

    async def _take_some(self) -> None:
        # The heartbeat must not see entries whose arrival here is still under way.
        async with self._lock:
            try:
                if self._orphans.seconds_until_due(self._available()) == 0 and not self._stopped:
                    self._took(await self._orphans.sweep(self._available()))
                    await self._orphans.prune()
                if any(self._available()) and not self._stopped:
                    self._took(await self._take())
            except FAILURES:
                # Whatever this took is an orphan without a name; the heartbeat finds such strays.
                self._on_gap()
                raise
            finally:
                self._left = self._available()

    async def _take(self) -> list[Held]:
        arguments = [*self._arguments, *self._available()]
        reply: list[Any] = await self._connection.run(TAKE, self._keys, arguments)
        taken: list[Held] = []
        for stream, entry_id, body, charge in reply[0]:
            held = self._holdings.take(Entry(stream - 1, entry_id.decode(), 1, charge), body)
            if held is not None:
                self._connection.counters.taken += 1
                taken.append(held)
        if not taken:
            self._watcher.arm(
                {key: after for key, after in zip(self._queues, reply[1], strict=True) if after}
            )
        return taken

    def _took(self, held: list[Held]) -> None:
        self._unclaimed += held
        self._spent += len(held)

    async def _claim(self) -> None:
        claims = await self._claimer.claim(self._unclaimed)
        self._spent -= len(self._unclaimed) - len(claims)
        self._unclaimed = []
        self._claims += claims
        self._handed_out.set()
        self._handed_out = anyio.Event()

    async def _until_woken(self) -> None:
        until_sweep = self._orphans.seconds_until_due(self._available())
        with anyio.move_on_after(None if until_sweep is None else max(0.01, until_sweep)):
            await self._wake.wait()

    def _available(self) -> Room:
        high, normal, low = (max(0, room - self._spent) for room in self._room)
        return high, normal, low

    def _wake_up(self) -> None:
        self._wake.set()


class _Watcher:
    """Waits for entries beyond given ids, without taking them, and wakes the intake."""

    def __init__(self, connection: Connection, wake: Callable[[], None]) -> None:
        self._connection = connection
        self._wake = wake
        self._after: dict[str, bytes] = {}
        self._armed = anyio.Event()
        self._watched: frozenset[str] = frozenset()
        self._scope = anyio.CancelScope()

    def arm(self, after: dict[str, bytes]) -> None:
        """Wake once an entry is beyond its stream's id; also after a while without one."""
        self._after = after
        self._armed.set()
        if self._watched and not self._watched.issuperset(after):
            self._scope.cancel()  # it waits for less than it now should

    async def run(self) -> None:
        backoff = Backoff()
        block_ms = milliseconds(self._connection.longest_block)
        while True:
            await self._armed.wait()
            self._armed = anyio.Event()
            after = self._after
            self._watched = frozenset(after)
            with anyio.CancelScope() as self._scope:
                call = ("XREAD", "BLOCK", block_ms, "COUNT", 1, "STREAMS", *after, *after.values())
                try:
                    await self._connection.block(*call)
                    backoff.reset()
                except FAILURES as error:
                    self._connection.report("waiting for requests", error)
                    await backoff.sleep()
                self._wake()
            self._watched = frozenset()
