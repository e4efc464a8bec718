"""What the serve loop must know about running requests from outside: cancelled, expired, lost."""

import heapq
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import msgpack
from redis.asyncio.client import PubSub

from ...clients.protocol import FinishReason
from .clock import Clock
from .connection import FAILURES, Backoff, Connection
from .entries import OwnedEntries, OwnedEntry
from .settings import BrokerSettings

log = logging.getLogger(__name__)

_LONGEST_NOTICE = 4096
_MOST_DISPLACED = 64
_POLL = 1.0
_LONGEST_PAUSE = 1.0
"""Seconds between tries: to be connected again is to be known again, see ``on_gap``."""


@dataclass(slots=True)
class Interrupts:
    """Requests to end or to drop before the next iteration. Each is told once."""

    end: dict[str, FinishReason] = field(default_factory=dict[str, FinishReason])
    """To be finished with what they have."""
    drop: dict[str, int] = field(default_factory=dict[str, int])
    """Claims that are over, by request id with their epoch: to be forgotten without a word."""

    displaced: dict[str, int] = field(default_factory=dict[str, int])
    """Requests for which other workers have no credits, with their numbers of tokens."""
    invited: dict[str, None] = field(default_factory=dict[str, None])
    """Requests of this worker for which another has credits."""

    def __bool__(self) -> bool:
        return bool(self.end or self.drop or self.displaced or self.invited)


class Control:
    """Collects interrupts; ``run`` listens for notices.

    A notice only makes things quick: the cancel flag in a request's state, which every emit and the
    heartbeat bring back, is what counts. ``on_gap`` is called when notices may have been missed, and
    ``on_released`` when another worker has given requests back, and ``on_missing`` when somebody who follows
    a request would like to know that it has an entry still.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        connection: Connection,
        owned_entries: OwnedEntries,
        clock: Clock,
        consumer: str,
        *,
        on_gap: Callable[[], None],
        on_released: Callable[[], None],
        on_missing: Callable[[str], None],
    ) -> None:
        self._channel = settings.keys.control(settings.model)
        self._connection = connection
        self._owned = owned_entries
        self._clock = clock
        self._consumer = consumer
        self._on_gap = on_gap
        self._on_released = on_released
        self._on_missing = on_missing
        self._interrupts = Interrupts()
        self._deadlines: list[tuple[int, int, OwnedEntry]] = []
        self._tickets = 0
        self._heard = False
        self._arrived = anyio.Event()
        self._taken = anyio.Event()

    def take(self) -> Interrupts:
        """Everything since the last call."""
        while self._expires():
            self._end(heapq.heappop(self._deadlines)[2], "expired")
        interrupts, self._interrupts = self._interrupts, Interrupts()
        self._taken.set()
        self._taken = anyio.Event()
        return interrupts

    async def arrived(self) -> None:
        """Wait until ``take`` may have something: for a serve loop with nothing to compute."""
        while not self._interrupts:
            if self._expires():
                return
            with anyio.move_on_after(_POLL):
                await self._arrived.wait()
            self._arrived = anyio.Event()

    async def dropped(self, request_id: str) -> None:
        """Wait until the serve loop has been told of an earlier claim's loss, if there was one."""
        while request_id in self._interrupts.drop:
            await self._taken.wait()

    def watch(self, owned: OwnedEntry) -> None:
        """Mind the deadline of a claim."""
        if owned.deadline is not None:
            self._tickets += 1
            heapq.heappush(self._deadlines, (owned.deadline, self._tickets, owned))
            if len(self._deadlines) > 2 * len(self._owned.requests) + 64:
                self._deadlines = [item for item in self._deadlines if self._is_owned(item[2])]
                heapq.heapify(self._deadlines)

    def cancelled(self, owned: OwnedEntry) -> None:
        self._end(owned, "cancelled")

    def lost(self, owned: OwnedEntry) -> None:
        if owned.request_id is not None:
            self._interrupts.drop[owned.request_id] = owned.epoch
            self._arrived.set()

    async def run(self) -> None:
        """Listen until cancelled; subscribes again after every failure."""
        backoff = Backoff(_LONGEST_PAUSE)
        failing = False
        while True:
            try:
                subscription = await self._connection.subscribe(self._channel)
                try:
                    await self._listen(subscription, backoff)
                finally:
                    with anyio.CancelScope(shield=True):
                        await subscription.aclose()
            except FAILURES as error:
                failing = failing and not self._heard
                self._connection.report("listening for notices", error, repeated=failing)
                failing = True
            await backoff.sleep()

    async def _listen(self, subscription: PubSub, backoff: Backoff) -> None:
        self._heard = False
        while True:
            message = await subscription.get_message(timeout=_POLL)
            if message is None:
                continue
            if message["type"] in ("unsubscribe", "sunsubscribe"):
                raise ConnectionError("the channel has moved to another node")
            self._heard = True
            backoff.reset()
            data = message["data"]
            if isinstance(data, bytes):  # of the confirmation, a number
                self._notice(data)
            else:
                self._on_gap()

    def _notice(self, data: bytes) -> None:
        notice = decode_notice(data)
        request_id = notice.get("cancel")
        if isinstance(request_id, str) and (owned := self._owned.requests.get(request_id)):
            self.cancelled(owned)
        missing = notice.get("missing")
        if isinstance(missing, str):
            self._on_missing(missing)
        if notice.get("released") and notice.get("by") != self._consumer:
            self._on_released()
        self._notice_of_room(notice.get("displaced"), notice.get("tokens"), notice.get("room_for"))

    def _notice_of_room(self, displaced: object, tokens: object, invited: object) -> None:
        interrupts, mine = self._interrupts, self._owned.requests
        if isinstance(displaced, str) and isinstance(tokens, int) and displaced not in mine:
            if len(interrupts.displaced) < _MOST_DISPLACED:
                interrupts.displaced[displaced] = tokens
        elif isinstance(invited, str) and invited in mine:
            interrupts.invited[invited] = None
        if interrupts:
            self._arrived.set()

    def _expires(self) -> bool:
        return bool(self._deadlines) and self._deadlines[0][0] <= self._clock.now_ms()

    def _end(self, owned: OwnedEntry, reason: FinishReason) -> None:
        if self._is_owned(owned) and owned.end is None and owned.request_id is not None:
            owned.end = reason
            self._interrupts.end[owned.request_id] = reason
            self._arrived.set()

    def _is_owned(self, owned: OwnedEntry) -> bool:
        return self._owned.requests.get(owned.request_id or "") is owned and not owned.ended


def decode_notice(data: bytes) -> dict[Any, Any]:
    """A control notice; empty for bytes that are none. Unknown fields are for the reader to pass over."""
    if len(data) > _LONGEST_NOTICE:
        return {}
    try:
        notice = msgpack.unpackb(data)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError):
        return {}
    return cast(dict[Any, Any], notice) if isinstance(notice, dict) else {}
