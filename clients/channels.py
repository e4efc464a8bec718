"""One pub/sub connection for all the channels a client follows; in a cluster, one to each node with some."""

import asyncio
import logging
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

import anyio
import redis.asyncio
import redis.exceptions
from anyio.abc import TaskGroup
from redis.asyncio.client import PubSub

from .connection import Connection, pauses

MAX_MESSAGES: Final = 1024
MAX_BYTES: Final = 1 << 20
"""What a mailbox holds at most. A reader slower than that reads the log instead."""

_FORGOTTEN_AFTER: Final = 1.0
_PING_AFTER: Final = 10.0
"""Seconds of silence on the connection before it is asked whether it is alive; as many to answer."""

_log = logging.getLogger(__name__)


class Mailbox:
    """What arrived on one channel and was not looked at yet, bounded.

    It also knows when messages may have been missed: before the subscription was confirmed, while the
    connection was away, or because the box was full. The log has them.
    """

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self._bytes = 0
        self._missed = False
        self._filled = asyncio.Event()

    def put(self, message: bytes) -> None:
        if len(self._messages) >= MAX_MESSAGES or self._bytes + len(message) > MAX_BYTES:
            self.mark_missed()
        self._messages.append(message)
        self._bytes += len(message)
        self._filled.set()

    def mark_missed(self) -> None:
        """Messages may have been missed; those in the box, earlier ones, are in the log as well."""
        self._messages.clear()
        self._bytes = 0
        self._missed = True
        self._filled.set()

    async def receive(self, seconds: float) -> bytes | None:
        """The next message, or None for "read the log": some were missed, or so many seconds passed."""
        if not self._missed and not self._messages:
            self._filled.clear()
            with anyio.move_on_after(seconds):
                await self._filled.wait()
        if self._missed or not self._messages:
            self._missed = False
            return None
        message = self._messages.popleft()
        self._bytes -= len(message)
        return message


class _Boxes:
    """All mailboxes by channel, and which channels are known to flow into them."""

    def __init__(self) -> None:
        self.of: dict[str, set[Mailbox]] = {}
        self.confirmed: set[str] = set()

    def deliver(self, channel: str, data: bytes) -> None:
        for box in self.of.get(channel, ()):
            box.put(data)

    def confirm(self, channel: str) -> None:
        self.confirmed.add(channel)
        for box in self.of.get(channel, ()):
            box.mark_missed()


class _Link:
    """A connection to one server for the channels that it has. It fails rather than restoring itself."""

    def __init__(self, *, sharded: bool) -> None:
        self.wanted: set[str] = set()
        self._asked: set[str] = set()
        self._sharded = sharded
        # Channels that have come or gone: to look through all of them for each would be slow with thousands.
        self._touched: set[str] = set()
        self._changed = asyncio.Event()

    def want(self, channel: str) -> None:
        self.wanted.add(channel)
        self._touch(channel)

    def leave(self, channel: str) -> None:
        self.wanted.discard(channel)
        self._touch(channel)

    def _touch(self, channel: str) -> None:
        self._touched.add(channel)
        self._changed.set()

    async def run(self, server: redis.asyncio.Redis, boxes: "_Boxes") -> None:
        """Deliver until cancelled. Raises ``redis.RedisError``: the connection failed or a channel moved."""
        subscriber = server.pubsub()
        try:
            await subscriber.connect()
            async with anyio.create_task_group() as both:
                both.start_soon(self._keep_subscribed, subscriber, boxes)
                await self._deliver(subscriber, boxes)
        finally:
            with anyio.CancelScope(shield=True):
                await subscriber.aclose()

    async def _keep_subscribed(self, subscriber: PubSub, boxes: "_Boxes") -> None:
        while True:
            self._changed.clear()
            touched, self._touched = self._touched, set()
            joined = (touched & self.wanted) - self._asked
            left = (touched & self._asked) - self.wanted
            boxes.confirmed -= left
            self._asked |= joined
            self._asked -= left
            if self._sharded:  # one slot a command
                for channel in joined:
                    await subscriber.ssubscribe(channel)
                for channel in left:
                    await subscriber.sunsubscribe(channel)
            else:
                if joined:
                    await subscriber.subscribe(*joined)
                if left:
                    await subscriber.unsubscribe(*left)
            await self._changed.wait()

    async def _deliver(self, subscriber: PubSub, boxes: "_Boxes") -> None:
        silent = False
        while True:
            message: dict[str, Any] | None = await subscriber.get_message(timeout=_PING_AFTER)
            if message is None:
                if silent and self.wanted:
                    raise redis.exceptions.ConnectionError("no answer to a ping")
                silent = True
                if self.wanted:
                    await subscriber.ping()
                continue
            silent = False
            if message["type"] == "pong":
                continue
            channel = str(message["channel"], "ascii")
            kind = message["type"].removeprefix("s" if self._sharded else "")
            if kind == "message":
                boxes.deliver(channel, message["data"])
            elif kind == "subscribe":
                boxes.confirm(channel)
            elif self._sharded and channel in self.wanted and channel in boxes.confirmed:
                raise redis.exceptions.ConnectionError("a channel has moved to another node")
            else:
                boxes.confirmed.discard(channel)


class Channels:
    """The channels that somebody follows now, over connections that are restored when they fail."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._boxes = _Boxes()
        self._links: dict[redis.asyncio.Redis, _Link] = {}
        self._placed: dict[str, _Link] = {}
        self._touched: set[str] = set()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._pauses = pauses()

    @contextmanager
    def open(self, channel: str) -> Generator[Mailbox]:
        """A mailbox on ``channel``; its first ``receive`` gives None once messages flow into it."""
        box = Mailbox()
        boxes = self._boxes.of
        boxes.setdefault(channel, set()).add(box)
        if channel in self._boxes.confirmed:
            box.mark_missed()
        self._touch(channel)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._place_all(), name="headrace channels")
        try:
            yield box
        finally:
            boxes[channel].remove(box)
            if not boxes[channel]:
                del boxes[channel]
            self._touch(channel)

    @property
    def number(self) -> int:
        """How many channels are followed."""
        return len(self._boxes.of)

    async def aclose(self) -> None:
        while self._task is not None and not self._task.done():
            # More than once: Python 3.11 forgets a cancellation that meets the end of what it waits for.
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_FORGOTTEN_AFTER)
        self._task = None

    async def _place_all(self) -> None:
        self._links.clear()
        self._placed.clear()
        self._touched |= self._boxes.of.keys()
        # anyio's: it goes on cancelling until all have ended, see ``aclose``.
        async with anyio.create_task_group() as tasks:
            while True:
                await self._changed.wait()
                self._changed.clear()
                while self._touched:
                    channel = self._touched.pop()
                    if (channel in self._boxes.of) == (channel in self._placed):
                        continue
                    if channel in self._placed:
                        self._placed.pop(channel).leave(channel)
                        continue
                    try:
                        server = await self._connection.subscriber(channel)
                    except (redis.exceptions.RedisError, OSError) as error:
                        self._touched.add(channel)
                        await self._failed(error)
                        continue
                    if channel in self._boxes.of:
                        self._placed[channel] = self._link(server, tasks)
                        self._placed[channel].want(channel)

    def _link(self, server: redis.asyncio.Redis, tasks: TaskGroup) -> _Link:
        link = self._links.get(server)
        if link is None:
            link = self._links[server] = _Link(sharded=self._connection.location.publish == "SPUBLISH")
            tasks.start_soon(self._keep, link, server)
        return link

    async def _keep(self, link: _Link, server: redis.asyncio.Redis) -> None:
        failure: Exception | None = None
        try:
            await link.run(server, self._boxes)
        except* Exception as errors:
            # Of any class: subscribing and receiving use one connection, and where one of them finds it lost
            # the Redis client takes it from under the other, which then fails in whatever it was about to do.
            failure = errors.exceptions[0]
        if not self._boxes.confirmed.isdisjoint(link.wanted):
            self._pauses = pauses()
        self._boxes.confirmed &= {channel for channel, other in self._placed.items() if other is not link}
        await self._failed(failure)
        del self._links[server]
        for channel in [channel for channel, other in self._placed.items() if other is link]:
            del self._placed[channel]
            self._touched.add(channel)
        self._changed.set()

    def _touch(self, channel: str) -> None:
        self._touched.add(channel)
        self._changed.set()

    async def _failed(self, error: Exception | None) -> None:
        _log.warning("lost the pub/sub connection: %s", error)
        self._connection.doubt()
        await asyncio.sleep(next(self._pauses))
