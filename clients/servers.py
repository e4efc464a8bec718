"""Commands and subscriptions by key, whether one server has all keys or the nodes of a cluster share them."""

from collections.abc import Sequence
from typing import Any

import redis.asyncio

from .cluster import Call, Cluster
from .redis_url import Location, close_client, open_client


class OneServer:
    """All keys in one place: a server, or whichever one Sentinels say is the master. Like ``Cluster``."""

    def __init__(self, location: Location, options: dict[str, Any]) -> None:
        self._client = open_client(location, options)

    def doubt(self) -> None:
        """Nothing to ask anew: each new connection goes to where the URL or the Sentinels say."""

    async def owner(self, key: str) -> redis.asyncio.Redis:  # noqa: ARG002 - it has every key
        return self._client

    async def masters(self) -> list[redis.asyncio.Redis]:
        return [self._client]

    async def execute(self, calls: Sequence[Call]) -> list[Any]:
        """The replies, in one round trip; in the place of an error reply, the error.

        Raises:
            redis.RedisError: the connection failed; which calls were executed is unknown.
        """
        async with self._client.pipeline(transaction=False) as pipeline:
            for call in calls:
                pipeline.execute_command(*call)
            return await pipeline.execute(raise_on_error=False)

    async def aclose(self) -> None:
        await close_client(self._client)


Servers = OneServer | Cluster


def open_servers(location: Location, options: dict[str, Any]) -> Servers:
    """Connects when first used. ``options`` are those of ``redis.asyncio.Redis``."""
    return Cluster(location, options) if location.kind == "cluster" else OneServer(location, options)
