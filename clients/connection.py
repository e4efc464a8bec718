"""The only file that connects to Redis: URLs, timeouts, retries, which errors pass, and what callers see."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from time import monotonic
from typing import Any, Final, TypeVar, cast

import anyio
import redis.asyncio
import redis.exceptions as redis_errors
from redis.asyncio.cluster import ClusterNode, RedisCluster

from .errors import ServerFull, Unavailable
from .jitter import jittered
from .redis_url import Location, close_client, open_client, time_limits
from .servers import open_servers

_T = TypeVar("_T")

MAX_CONNECTIONS: Final = 16
"""Of one client for commands; callers beyond that wait for one to be free."""

_BUSY: Final = ("BUSY", "LOADING", "MASTERDOWN")
_FAILING_OVER: Final = (redis_errors.ReadOnlyError, redis_errors.ClusterError, redis_errors.TryAgainError)
_ANY: Final = (redis_errors.RedisError, redis_errors.RedisClusterException, OSError)
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0


class Connection:
    """Commands to one Redis, each within ``timeout`` seconds, retried for ``patience`` seconds.

    Every operation given to ``call`` can be repeated without harm: that is a rule of this library, because a
    reply that was lost says nothing about what was done.
    """

    def __init__(self, url: str, *, timeout: float, patience: float) -> None:
        self.url = url
        self.patience = patience
        self.location = Location.of(url)
        self._turns = asyncio.Semaphore(MAX_CONNECTIONS)
        self._answered = 0.0
        options = time_limits(timeout)
        self._subscribers = open_servers(self.location, options)
        self.server: redis.asyncio.Redis
        """For commands: in a cluster, each of keys in one slot."""
        if self.location.kind == "cluster":
            nodes = [ClusterNode(host, port) for host, port in self.location.nodes]
            router: Any = RedisCluster(startup_nodes=nodes, **{**self.location.node_options(), **options})
            self.server = cast(redis.asyncio.Redis, router)  # the same commands, without a common class
        else:
            self.server = open_client(self.location, options)

    async def call(self, operation: Callable[[redis.asyncio.Redis], Awaitable[_T]]) -> _T:
        """``operation``'s result.

        Raises:
            Unavailable: transient failures went on for ``patience`` seconds, or the failure is not transient.
        """
        give_up = 0.0
        for pause in pauses():
            try:
                await self._take_turn()
                give_up = give_up or monotonic() + self.patience
                try:
                    result = await operation(self.server)
                    self._answered = monotonic()
                    return result
                finally:
                    self._turns.release()
            except _ANY as error:
                if isinstance(error, redis_errors.OutOfMemoryError) or str(error).startswith("OOM"):
                    raise ServerFull(f"Redis is full: {error}") from error
                if not is_transient(error):
                    raise Unavailable(f"Redis refuses: {error}") from error
                if not give_up or monotonic() + pause > give_up:
                    raise Unavailable(f"Redis cannot be reached: {error}") from error
            await anyio.sleep(pause)
        raise AssertionError("pauses never end")

    async def _take_turn(self) -> None:
        # Thousands may want one at once, all streams of a gateway whose requests end together, for example.
        # As long as Redis answers others, to wait says nothing about it. Raises TimeoutError.
        asked = monotonic()
        while True:
            with anyio.move_on_after(max(asked, self._answered) + self.patience - monotonic()):
                await self._turns.acquire()
                return
            if monotonic() >= max(asked, self._answered) + self.patience:
                raise TimeoutError("it answers nobody")

    async def publish(self, channel: str, message: bytes) -> None:
        """Raises as ``call``."""

        async def send(server: redis.asyncio.Redis) -> None:
            await server.execute_command(self.location.publish, channel, message)

        await self.call(send)

    async def masters(self) -> list[redis.asyncio.Redis]:
        """The servers that together have all keys: one, but in a cluster. Raises as ``call``."""
        return await self.call(lambda _: self._subscribers.masters())

    async def now_ms(self) -> int:
        """Unix milliseconds by Redis's clock, of the first master in a cluster. Raises as ``call``."""

        async def read(_: redis.asyncio.Redis) -> int:
            seconds, microseconds = await (await self._subscribers.masters())[0].time()
            return seconds * 1000 + microseconds // 1000

        return await self.call(read)

    async def subscriber(self, channel: str) -> redis.asyncio.Redis:
        """The server that has ``channel``; one and the same object for all channels of one server.

        Raises:
            redis.RedisError: no server knows where it is.
        """
        return await self._subscribers.owner(channel)

    def doubt(self) -> None:
        """A server did not have what it should have: ask again where things are."""
        self._subscribers.doubt()

    async def aclose(self) -> None:
        await self._subscribers.aclose()
        if self.location.kind == "cluster":
            await self.server.aclose()
        else:
            await close_client(self.server)


def pauses() -> Iterator[float]:
    """Seconds to wait after the first, second, ... failure: doubling, with jitter, up to two seconds."""
    pause = _FIRST_PAUSE
    while True:
        yield jittered(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def is_transient(error: Exception) -> bool:
    """Whether the same command may succeed in a moment: Redis is away, starting, failing over or busy."""
    if isinstance(error, redis_errors.AuthenticationError | redis_errors.AuthorizationError):
        return False
    if isinstance(error, redis_errors.ConnectionError | redis_errors.TimeoutError | OSError):
        return True
    # Also when a cluster's layout changes faster than it is followed.
    if isinstance(error, (*_FAILING_OVER, redis_errors.AskError, redis_errors.RedisClusterException)):
        return True
    return isinstance(error, redis_errors.ResponseError) and str(error).startswith(_BUSY)
