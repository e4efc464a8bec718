"""Scheduled work on both servers: leases that end, fences, bounds."""

import pytest
from redis_servers import RedisServer

from headrace.clients import AsyncClient
from headrace.clients.gateway.redis_keys import GatewayKeys
from headrace.clients.gateway.schedules.schedule import Schedule

pytestmark = pytest.mark.anyio


@pytest.fixture
async def schedule(every_server: RedisServer):
    async with AsyncClient(every_server.url) as client:
        yield Schedule(client.connection, GatewayKeys("headrace"), "tests", limit=3, ttl=60)


async def test_one_at_a_time_and_by_age(schedule: Schedule) -> None:
    for name in ("a", "b"):
        assert await schedule.add(name, name.encode())
    first, second = await schedule.take(30), await schedule.take(30)
    assert first is not None
    assert second is not None
    assert {(first.id, first.task), (second.id, second.task)} == {("a", b"a"), ("b", b"b")}
    assert await schedule.take(30) is None
    assert await schedule.finish(first)
    assert not await schedule.finish(first)


async def test_a_lease_that_ended_is_somebody_elses(schedule: Schedule) -> None:
    await schedule.add("a", b"1")
    dead = await schedule.take(0.0)
    assert dead is not None
    alive = None
    while alive is None:
        alive = await schedule.take(30)
    assert alive.id == "a"
    assert await schedule.postpone(dead, 0, b"2") is None
    assert not await schedule.finish(dead)
    kept = await schedule.postpone(alive, 30, b"3")
    assert kept is not None
    assert await schedule.take(30) is None
    again = await schedule.postpone(kept, 0, b"4")
    assert again is not None
    leased = None
    while leased is None:
        leased = await schedule.take(30)
    assert leased.task == b"4"


async def test_not_before_it_is_due_and_not_twice(schedule: Schedule) -> None:
    assert await schedule.add("a", b"1", delay=60)
    assert await schedule.add("a", b"2", delay=0), "it is there already"
    assert await schedule.take(30) is None


async def test_bounded(schedule: Schedule) -> None:
    for name in ("a", "b", "c"):
        assert await schedule.add(name, b"")
    assert not await schedule.add("d", b"")
    await schedule.drop("b")
    assert await schedule.add("d", b"")
