"""A cluster's clients: one for each node of today, whatever came and went."""

from typing import Any

import pytest
import redis.asyncio

from headrace.clients.cluster import Cluster
from headrace.clients.redis_url import Location, time_limits

pytestmark = pytest.mark.anyio


async def test_clients_of_nodes_that_left_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    closed: set[int] = set()

    async def answer(*call: Any) -> list[Any]:
        """The layout: each time it is asked for, its one node is another than before."""
        nonlocal asked
        assert call[1:] == ("CLUSTER SLOTS",)
        asked += 1
        return [[0, 16383, [b"127.0.0.1", 10_000 + asked, b"id"]]]

    async def close(self: redis.asyncio.Redis) -> None:
        closed.add(id(self))

    monkeypatch.setattr(redis.asyncio.Redis, "execute_command", answer)
    monkeypatch.setattr(redis.asyncio.Redis, "aclose", close)
    cluster = Cluster(Location.of("redis+cluster://127.0.0.1:9999"), time_limits(1.0))
    owners: list[redis.asyncio.Redis] = []
    for _ in range(30):
        cluster.doubt()
        owners.append(await cluster.owner("key"))
    assert asked == 30
    opened = {id(owner) for owner in owners}
    assert len(opened) == 30
    assert len(opened - closed) <= 3
    await cluster.aclose()
    assert opened <= closed
