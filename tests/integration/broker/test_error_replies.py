"""Each kind of trouble that Redis can be in, really brought about: counted under its name, and survived."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.to_thread
import pytest
import redis
from counting_worker import (
    KEYS,
    CountingEngine,
    CountingWorker,
    assert_served,
    enqueue,
    queue_is_empty,
    settings,
    state_of,
    until,
)
from cut_proxy import cuttable
from redis_servers import RedisServer

from headrace.worker.broker import Broker, open_broker

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def half_served(url: str, client: redis.Redis) -> AsyncIterator[tuple[Broker, CountingWorker]]:
    """A request stands at token 5 while the block runs; after it, it has to end as if nothing had been."""
    enqueue(client, "a", max_tokens=40)
    async with (
        open_broker(settings(url, lease=60, timeout=2)) as broker,
        anyio.create_task_group() as tasks,
    ):
        worker = CountingWorker(broker, CountingEngine(pause_at=5))
        tasks.start_soon(worker.serve)
        await until(lambda: state_of(client, "a").get("seq") == "5")
        yield broker, worker
        worker.engine.pause_at = None
        await until(lambda: queue_is_empty(client))
        tasks.cancel_scope.cancel()
    assert_served(client, "a", 40)
    assert broker.counters.lost_claims == 0


async def test_busy_with_somebodys_endless_script(private_server: RedisServer) -> None:
    client = private_server.connect()
    client.config_set("lua-time-limit", "50")

    def run_forever() -> None:
        with private_server.connect() as other, suppress(redis.ResponseError):
            other.eval("while true do end", 0)

    async with (
        half_served(private_server.url, client) as (broker, worker),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(anyio.to_thread.run_sync, run_forever)
        worker.engine.pause_at = 20
        await until(lambda: broker.counters.retries["busy"] > 2)
        client.script_kill()


async def test_loading_its_data_after_a_restart(private_server: RedisServer) -> None:
    client = private_server.connect()
    with client.pipeline() as pipeline:
        for number in range(3000):
            pipeline.set(f"ballast{number}", "x" * 100, ex=3600)
        pipeline.execute()
    async with half_served(private_server.url, client) as (broker, worker):
        client.bgrewriteaof()
        await until(lambda: client.info("persistence")["aof_rewrite_in_progress"] == 0)
        await until(lambda: client.info("persistence")["aof_rewrite_scheduled"] == 0)
        private_server.kill()
        private_server.options |= {"key-load-delay": "500", "loading-process-events-interval-bytes": "1024"}
        worker.engine.pause_at = 20
        await anyio.to_thread.run_sync(private_server.start)
        await until(lambda: state_of(client, "a").get("seq") == "20")
        assert broker.counters.retries["loading"] > 0


async def test_scripts_forgotten(private_server: RedisServer) -> None:
    client = private_server.connect()
    async with half_served(private_server.url, client) as (broker, worker):
        before = broker.counters.retries["noscript"]
        client.script_flush()
        worker.engine.pause_at = 20
        await until(lambda: state_of(client, "a").get("seq") == "20")
        assert broker.counters.retries["noscript"] > before
        assert set(broker.counters.retries) == {"noscript"}


async def test_snapshots_that_fail(private_server: RedisServer) -> None:
    client = private_server.connect()
    async with half_served(private_server.url, client) as (broker, worker):
        in_the_way = private_server.folder / "dump.rdb" / "full"
        in_the_way.mkdir(parents=True)
        client.config_set("save", "3600 1")
        client.bgsave()
        await until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
        worker.engine.pause_at = 20
        await until(lambda: broker.counters.retries["down"] > 2)
        assert state_of(client, "a")["seq"] == "5"
        client.config_set("stop-writes-on-bgsave-error", "no")


async def test_a_request_whose_key_is_not_a_log_does_not_harm_those_it_is_sent_with(
    redis_url: str, redis_client: redis.Redis
) -> None:
    names = [f"r{number}" for number in range(6)]
    for name in names:
        enqueue(redis_client, name, max_tokens=40)
    async with open_broker(settings(redis_url, lease=60)) as broker, anyio.create_task_group() as tasks:
        worker = CountingWorker(broker, CountingEngine(pause_at=5))
        tasks.start_soon(worker.serve)
        await until(lambda: all(state_of(redis_client, name).get("seq") == "5" for name in names))
        redis_client.set(KEYS.events("r2"), "somebody else's", ex=60)
        worker.engine.pause_at = None
        others = [name for name in names if name != "r2"]
        await until(lambda: all(state_of(redis_client, name)["status"] == "finished" for name in others))
        await until(lambda: broker.counters.lost_claims == 1)
        tasks.cancel_scope.cancel()
    for name in others:
        assert_served(redis_client, name, 40)
    assert set(broker.counters.retries) <= {"noscript"}


async def test_connections_cut_in_the_middle_of_everything(private_server: RedisServer) -> None:
    client = private_server.connect()
    names = [f"r{number}" for number in range(6)]
    with cuttable(private_server.url) as proxy:
        url = proxy.url.replace("http:", "redis:")
        async with (
            open_broker(settings(url, lease=60, timeout=2)) as broker,
            anyio.create_task_group() as tasks,
        ):
            worker = CountingWorker(broker)
            tasks.start_soon(worker.serve)
            for number, name in enumerate(names):
                enqueue(client, name, max_tokens=300, lane=number)

            def logged() -> int:
                return sum(int(state_of(client, name).get("seq", 0)) for name in names)

            for cuts in range(1, 9):
                await until(lambda goal=cuts * 100: logged() > goal)
                proxy.cut()
                proxy.mend()
                await until(lambda cuts=cuts: broker.counters.retries["connection"] >= cuts)
            await until(lambda: queue_is_empty(client), within=60)
            tasks.cancel_scope.cancel()
    for name in names:
        assert_served(client, name, 300)
    assert broker.counters.lost_claims == 0
