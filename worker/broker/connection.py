"""One worker's way to Redis: time limits on everything, errors sorted by kind, backoff with jitter.

No command is retried inside the Redis client: whether repeating a command is safe is known only by its
caller, and each repetition is counted.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal, TypeVar

import anyio
from redis.asyncio.client import PubSub
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ConnectionError,  # noqa: A004 - the Redis client's own, a different class from the built-in one
    NoPermissionError,
    NoScriptError,
    RedisError,
    ResponseError,
    TimeoutError,  # noqa: A004
)

from ...clients.cluster import Call
from ...clients.jitter import jittered
from ...clients.redis_url import Location, time_limits
from ...clients.servers import open_servers
from .counters import Counters
from .scripts import Script, in_full

log = logging.getLogger(__name__)

T = TypeVar("T")
ErrorKind = Literal[
    "connection", "timeout", "loading", "busy", "readonly", "oom", "noscript", "down", "denied", "other"
]
FAILURES: Final = (RedisError, OSError, EOFError)
"""Everything a command can raise because of Redis or the way there."""

_BY_PREFIX: Final[dict[str, ErrorKind]] = {
    "BUSY": "busy",
    "LOADING": "loading",
    "READONLY": "readonly",
    "OOM": "oom",
    "NOSCRIPT": "noscript",
    "MASTERDOWN": "down",
    "CLUSTERDOWN": "down",
    "TRYAGAIN": "down",
    "MISCONF": "down",
    "NOREPLICAS": "down",
    "UNBLOCKED": "down",
    "NOAUTH": "denied",
    "NOPERM": "denied",
    "WRONGPASS": "denied",
}
_FIRST_DELAY: Final = 0.05
_LONGEST_DELAY: Final = 5.0


def error_kind(error: BaseException) -> ErrorKind:
    """What went wrong, as far as it decides what to do next."""
    # The client cuts known codes off its messages, so the class is looked at before the text.
    if isinstance(error, BusyLoadingError):
        return "loading"
    if isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError):
        return "denied"
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, ConnectionError | OSError | EOFError):
        return "connection"
    if isinstance(error, NoScriptError):
        return "noscript"
    if isinstance(error, AskError):  # or MovedError: a cluster's layout changes faster than it is followed
        return "down"
    name = type(error).__name__
    by_class: dict[str, ErrorKind] = {
        "ReadOnlyError": "readonly",
        "OutOfMemoryError": "oom",
        "ClusterDownError": "down",
        "MasterDownError": "down",
        "TryAgainError": "down",
    }
    if name in by_class:
        return by_class[name]
    return _BY_PREFIX.get(str(error).partition(" ")[0], "other")


def is_transient(error: BaseException) -> bool:
    """Whether the same command may succeed later, with nothing wrong about the command itself."""
    return error_kind(error) != "other"


class Backoff:
    """Delays that double from 50 ms to ``longest`` seconds, each shortened at random by up to a half."""

    def __init__(self, longest: float = _LONGEST_DELAY) -> None:
        self._delay = _FIRST_DELAY
        self._longest = longest

    def reset(self) -> None:
        self._delay = _FIRST_DELAY

    async def sleep(self) -> None:
        await anyio.sleep(jittered(self._delay))
        self._delay = min(self._longest, self._delay * 2)


class Connection:
    """Runs scripts and pipelines, on time-limited connections.

    ``timeout`` (seconds) limits every command; a blocking command may block as long, and has it on top.
    """

    def __init__(self, url: str, counters: Counters, timeout: float) -> None:
        self.counters = counters
        self.longest_block = timeout
        self.location = Location.of(url)
        self._commands = open_servers(self.location, _options(timeout))
        self._blocking = open_servers(self.location, _options(2 * timeout))

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._commands.aclose()
            await self._blocking.aclose()

    async def batch(self, calls: Sequence[Call]) -> list[Any]:
        """Send all calls in one round trip; an error reply is returned in its place.

        Calls refused because the server does not know their script are sent again with its text. In a cluster
        there is a round trip to each node concerned, and the failure of one is in the place of its calls'
        replies.

        Raises:
            redis.RedisError: the connection failed; which calls were executed is unknown.
        """
        replies = await self._execute(calls)
        unknown = [number for number, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            self.counters.retried("noscript")
            again = [in_full(calls[number]) for number in unknown]
            for number, reply in zip(unknown, await self._execute(again), strict=True):
                replies[number] = reply
        return replies

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[bytes | str | float]) -> Any:
        """One script's reply.

        Raises:
            redis.RedisError: also for an error reply.
        """
        reply = (await self.batch([script.call(keys, arguments)]))[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def command(self, *call: bytes | str | float) -> Any:
        """One command's reply.

        Raises:
            redis.RedisError: also for an error reply.
        """
        reply = (await self._execute([call]))[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def block(self, key: str, *call: bytes | str | float) -> Any:
        """One blocking command's reply, on a connection that other commands don't wait for.

        ``key`` is one of the command's.
        """
        self.counters.round_trips += 1
        try:
            return await (await self._blocking.owner(key)).execute_command(*call)
        except FAILURES:
            self._blocking.doubt()
            raise

    async def publish(self, channel: str, message: bytes) -> None:
        """Raises ``redis.RedisError``."""
        await self.command(self.location.publish, channel, message)

    async def subscribe(self, channel: str) -> PubSub:
        """A subscription, not yet confirmed; to be closed.

        Raises:
            redis.RedisError
        """
        self._blocking.doubt()
        subscription = (await self._blocking.owner(channel)).pubsub()
        try:
            if self.location.publish == "SPUBLISH":
                await subscription.ssubscribe(channel)
            else:
                await subscription.subscribe(channel)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await subscription.aclose()
            raise
        return subscription

    async def retrying(
        self, purpose: str, attempt: Callable[[], Awaitable[T]], longest: float = _LONGEST_DELAY
    ) -> T:
        """Repeat ``attempt``, at most ``longest`` seconds apart, until Redis lets it succeed.

        It must be safe to repeat.
        """
        backoff = Backoff(longest)
        failed = False
        while True:
            try:
                result = await attempt()
            except FAILURES as error:
                self.report(purpose, error, repeated=failed)
                failed = True
                await backoff.sleep()
            else:
                if failed:
                    log.info("%s: Redis replies again", purpose)
                return result

    def report(self, purpose: str, error: BaseException, *, repeated: bool = False) -> None:
        """Count a failure that will be retried, and log it; at debug level when it is ``repeated``."""
        kind = error_kind(error)
        self.counters.retried(kind)
        log.log(logging.DEBUG if repeated else logging.WARNING, "%s: %s: %s", purpose, kind, error)

    async def _execute(self, calls: Sequence[Call]) -> list[Any]:
        self.counters.round_trips += 1
        return await self._commands.execute(calls)


def _options(timeout: float) -> dict[str, Any]:
    return {**time_limits(timeout), "health_check_interval": 15}


__all__ = [
    "FAILURES",
    "Backoff",
    "Call",
    "Connection",
    "ErrorKind",
    "ResponseError",
    "error_kind",
    "is_transient",
]
