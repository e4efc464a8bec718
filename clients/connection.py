"""The only file that connects to Redis: URLs, timeouts, retries, which errors pass, and what callers see."""

import random
from collections.abc import Awaitable, Callable, Iterator
from time import monotonic
from typing import Final, TypeVar

import anyio
import redis.asyncio
import redis.exceptions as redis_errors
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from .errors import Unavailable

_T = TypeVar("_T")

MAX_CONNECTIONS: Final = 16
"""Of one client for commands; callers beyond that wait for one to be free."""

_BUSY: Final = ("BUSY", "LOADING", "MASTERDOWN")
_FAILING_OVER: Final = (redis_errors.ReadOnlyError, redis_errors.ClusterDownError, redis_errors.TryAgainError)
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
        # Only with RESP2 do replies have one form over all versions of servers and of redis-py.
        options = {
            "protocol": 2,
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "socket_keepalive": True,
            "retry": Retry(NoBackoff(), 0),
        }
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            url, max_connections=MAX_CONNECTIONS, timeout=timeout, **options
        )
        self.server = redis.asyncio.Redis.from_pool(pool)
        self.subscriber = redis.asyncio.Redis.from_pool(redis.asyncio.ConnectionPool.from_url(url, **options))

    async def call(self, operation: Callable[[redis.asyncio.Redis], Awaitable[_T]]) -> _T:
        """``operation``'s result.

        Raises:
            Unavailable: transient failures went on for ``patience`` seconds, or the failure is not transient.
        """
        give_up = monotonic() + self.patience
        for pause in pauses():
            try:
                return await operation(self.server)
            except (redis_errors.RedisError, OSError) as error:
                if not is_transient(error):
                    raise Unavailable(f"Redis refuses: {error}") from error
                if monotonic() + pause > give_up:
                    raise Unavailable(f"Redis cannot be reached: {error}") from error
            await anyio.sleep(pause)
        raise AssertionError("pauses never end")

    async def aclose(self) -> None:
        await self.server.aclose()
        await self.subscriber.aclose()


def pauses() -> Iterator[float]:
    """Seconds to wait after the first, second, ... failure: doubling, with jitter, up to two seconds."""
    pause = _FIRST_PAUSE
    while True:
        yield pause * random.uniform(0.5, 1.0)  # noqa: S311  jitter is no secret
        pause = min(2 * pause, _LONGEST_PAUSE)


def is_transient(error: Exception) -> bool:
    """Whether the same command may succeed in a moment: Redis is away, starting, failing over or busy."""
    if isinstance(error, redis_errors.AuthenticationError | redis_errors.AuthorizationError):
        return False
    if isinstance(error, redis_errors.ConnectionError | redis_errors.TimeoutError | OSError):
        return True
    if isinstance(
        error, redis_errors.ReadOnlyError | redis_errors.ClusterDownError | redis_errors.TryAgainError
    ):
        return True
    return isinstance(error, redis_errors.ResponseError) and str(error).startswith(_BUSY)
