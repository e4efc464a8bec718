"""A worker's record is fresh to the second, and never outlives what it stands for."""

import anyio
import pytest
import redis
from counting_worker import KEYS, MODEL, settings, until
from cut_proxy import cuttable
from redis_servers import RedisServer

from headrace.worker.broker import open_broker

pytestmark = pytest.mark.anyio

KEY = KEYS.worker(MODEL, "w")


async def test_changes_show_long_before_the_next_heartbeat(redis_url: str, redis_client: redis.Redis) -> None:
    fields: dict[str, str | int] = {"running": 0, "sequences": "[]"}
    async with (
        open_broker(settings(redis_url, lease=60.0), record=lambda: dict(fields)) as broker,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(broker.run)
        await until(lambda: redis_client.hget(KEY, "running") == b"0")
        first, ttl = int(redis_client.hget(KEY, "updated") or 0), redis_client.pttl(KEY)
        fields.update(running=3, sequences='[{"id":"a"}]')
        await until(lambda: redis_client.hget(KEY, "running") == b"3")
        assert redis_client.hget(KEY, "sequences") == b'[{"id":"a"}]'
        assert int(redis_client.hget(KEY, "updated") or 0) > first
        assert redis_client.pttl(KEY) <= ttl, "only heartbeats say how long the worker counts as alive"
        tasks.cancel_scope.cancel()


async def test_a_worker_that_hangs_or_has_left_is_not_brought_back(
    redis_url: str, redis_client: redis.Redis
) -> None:
    fields: dict[str, str | int] = {"running": 1}
    alive, asked = True, 0

    def progressing() -> bool:
        nonlocal asked
        asked += 1
        return alive

    async with (
        open_broker(
            settings(redis_url, lease=60.0), record=lambda: dict(fields), progressing=progressing
        ) as broker,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(broker.run)
        await until(lambda: redis_client.exists(KEY))
        alive, asked = False, 0
        fields["running"] = 2
        await until(lambda: asked >= 2)
        assert redis_client.hget(KEY, "running") == b"1"
        redis_client.delete(KEY)
        alive, asked = True, 0
        await until(lambda: asked >= 3)
        assert not redis_client.exists(KEY)
        tasks.cancel_scope.cancel()


async def test_a_server_that_comes_back_empty_is_told_of_the_worker_at_once(
    redis_server: RedisServer, redis_client: redis.Redis
) -> None:
    with cuttable(redis_server.url) as proxy:
        url = proxy.url.replace("http", "redis") + "/0"
        async with (
            open_broker(settings(url, lease=3600.0), record=lambda: {"running": 0}) as broker,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(broker.run)
            await until(lambda: redis_client.exists(KEY))
            proxy.cut()
            redis_client.flushall()
            proxy.mend()
            await until(lambda: redis_client.exists(KEY))
            tasks.cancel_scope.cancel()


async def test_a_full_server_is_told_of_a_new_worker_and_keeps_its_record(
    private_server: RedisServer,
) -> None:
    client = private_server.connect()
    client.config_set("maxmemory", "1")
    async with (
        open_broker(settings(private_server.url, lease=0.6), record=lambda: {"running": 0}) as broker,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(broker.run)
        await until(lambda: client.exists(KEY))
        first = client.hget(KEY, "updated")
        await until(lambda: client.hget(KEY, "updated") not in (first, None))
        tasks.cancel_scope.cancel()
    client.config_set("maxmemory", "0")
    await until(lambda: not client.exists(KEY))
