"""One pub/sub connection for all the channels a client follows."""

import asyncio
import logging
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

import anyio
import redis.asyncio
import redis.exceptions
from redis.asyncio.client import PubSub

from .connection import pauses

MAX_MESSAGES: Final = 1024
MAX_BYTES: Final = 1 << 20
"""What a mailbox holds at most. A reader slower than that reads the log instead."""

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


class Channels:
    """The channels that somebody follows now, over one connection that restores itself."""

    def __init__(self, server: redis.asyncio.Redis) -> None:
        self._server = server
        self._boxes: dict[str, set[Mailbox]] = {}
        self._confirmed: set[str] = set()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def open(self, channel: str) -> Generator[Mailbox]:
        """A mailbox on ``channel``; its first ``receive`` gives None once messages flow into it."""
        box = Mailbox()
        self._boxes.setdefault(channel, set()).add(box)
        if channel in self._confirmed:
            box.mark_missed()
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._stay_connected(), name="headrace channels")
        try:
            yield box
        finally:
            self._boxes[channel].remove(box)
            if not self._boxes[channel]:
                del self._boxes[channel]
            self._changed.set()

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _stay_connected(self) -> None:
        waits = pauses()
        while True:
            while not self._boxes:
                self._changed.clear()
                await self._changed.wait()
            subscriber = self._server.pubsub()
            try:
                await subscriber.connect()
                async with anyio.create_task_group() as both:
                    both.start_soon(self._keep_subscribed, subscriber)
                    await self._deliver(subscriber)
            except* (redis.exceptions.RedisError, OSError) as errors:
                _log.warning("lost the pub/sub connection: %s", errors.exceptions[0])
            finally:
                if self._confirmed:
                    waits = pauses()
                self._confirmed.clear()
                with anyio.CancelScope(shield=True):
                    await subscriber.aclose()
            await asyncio.sleep(next(waits))

    async def _keep_subscribed(self, subscriber: PubSub) -> None:
        asked: set[str] = set()
        while True:
            self._changed.clear()
            wanted = set(self._boxes)
            if joined := wanted - asked:
                await subscriber.subscribe(*joined)
            if left := asked - wanted:
                await subscriber.unsubscribe(*left)
            asked = wanted
            await self._changed.wait()

    async def _deliver(self, subscriber: PubSub) -> None:
        silent = False
        while True:
            message: dict[str, Any] | None = await subscriber.get_message(timeout=_PING_AFTER)
            if message is None:
                if silent:
                    raise redis.exceptions.ConnectionError("no answer to a ping")
                silent = True
                await subscriber.ping()
                continue
            silent = False
            if message["type"] == "pong":
                continue
            channel = str(message["channel"], "ascii")
            if message["type"] == "message":
                data: bytes = message["data"]
                for box in self._boxes.get(channel, ()):
                    box.put(data)
            elif message["type"] == "subscribe":
                self._confirmed.add(channel)
                for box in self._boxes.get(channel, ()):
                    box.mark_missed()
            else:
                self._confirmed.discard(channel)
