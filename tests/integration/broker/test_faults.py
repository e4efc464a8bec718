"""Redis away, slow, full, restarted, emptied: the worker goes on, and nothing is lost or repeated."""

import logging

import anyio
import pytest
import redis
from counting_worker import (
    KEYS,
    MODEL,
    CountingEngine,
    CountingWorker,
    assert_served,
    done_of,
    enqueue,
    log_of,
    queue_is_empty,
    settings,
    state_of,
    until,
)
from redis_servers import RedisServer

from headrace.clients.protocol import Delta
from headrace.worker.broker import open_broker

pytestmark = pytest.mark.anyio


async def test_decoding_goes_on_while_redis_is_away_and_is_delivered_when_it_is_back(
    private_server: RedisServer,
) -> None:
    client = private_server.connect()
    enqueue(client, "a", max_tokens=200)
    enqueue(client, "b", max_tokens=200)
    patient = settings(private_server.url, lease=30, timeout=2)
    async with open_broker(patient) as broker, anyio.create_task_group() as tasks:
        worker = CountingWorker(broker, CountingEngine(pause_at=20))
        tasks.start_soon(worker.serve)
        await until(lambda: all(state_of(client, name).get("seq") == "20" for name in "ab"))
        private_server.kill()
        worker.engine.pause_at = 150
        await until(lambda: all(len(one.tokens) == 150 for one in worker.engine.running.values()))
        await until(lambda: broker.counters.retries["connection"] > 2)
        private_server.start()
        worker.engine.pause_at = None
        await until(lambda: queue_is_empty(client))
        tasks.cancel_scope.cancel()
    assert_served(client, "a", 200)
    assert_served(client, "b", 200)
    assert broker.counters.lost_claims == 0


async def test_a_full_outbox_says_so_until_redis_is_back(private_server: RedisServer) -> None:
    client = private_server.connect()
    enqueue(client, "a", max_tokens=100_000)
    small = settings(private_server.url, lease=30, timeout=2, max_outbox_bytes=2000)
    async with open_broker(small) as broker, anyio.create_task_group() as tasks:
        worker = CountingWorker(broker)
        tasks.start_soon(worker.serve)
        await until(lambda: int(state_of(client, "a").get("seq", 0)) > 20)
        private_server.kill()
        await until(lambda: broker.outbox.full)
        tokens = len(worker.engine.running["a"].tokens)
        failures = broker.counters.retries.total()
        await until(lambda: broker.counters.retries.total() > failures + 5)
        assert len(worker.engine.running["a"].tokens) == tokens
        assert 2000 <= broker.counters.outbox_bytes < 3000
        private_server.start()
        with anyio.fail_after(20):
            await broker.outbox.writable()
        await until(lambda: int(state_of(client, "a").get("seq", 0)) > tokens)
        client.hset(KEYS.request("a"), "cancel", 1)
        await until(lambda: queue_is_empty(client))
        tasks.cancel_scope.cancel()
    delta, done = log_of(client, "a")
    assert isinstance(delta, Delta)
    assert delta.tokens == list(range(done.seq))


async def test_a_server_that_lost_the_end_of_a_log_is_sent_it_again(
    redis_url: str, redis_client: redis.Redis
) -> None:
    enqueue(redis_client, "a", max_tokens=30)
    async with open_broker(settings(redis_url)) as broker, anyio.create_task_group() as tasks:
        worker = CountingWorker(broker, CountingEngine(pause_at=20))
        tasks.start_soon(worker.serve)
        await until(lambda: state_of(redis_client, "a").get("seq") == "20")
        # What a restart without the last second of the append-only file leaves: a shorter log.
        entries = redis_client.xrange(KEYS.events("a"))
        kept = [fields[b"e"] for _, fields in entries[: len(entries) // 2]]
        left = sum(
            len(event.tokens) for event in log_of(redis_client, "a")[: len(kept)] if isinstance(event, Delta)
        )
        assert 0 < left < 20
        with redis_client.pipeline() as atomic:
            atomic.delete(KEYS.events("a"))
            for data in kept:
                atomic.xadd(KEYS.events("a"), {"e": data})
            atomic.expire(KEYS.events("a"), 60)
            atomic.hset(KEYS.request("a"), "seq", left)
            atomic.execute()
        await until(lambda: state_of(redis_client, "a").get("seq") == "20")  # without any new token
        tokens = [
            token for event in log_of(redis_client, "a") if isinstance(event, Delta) for token in event.tokens
        ]
        assert tokens == list(range(20))
        worker.engine.pause_at = None
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    assert broker.counters.relogged == 1
    assert_served(redis_client, "a", 30)


async def test_a_server_that_lost_everything_ends_requests_in_the_log_and_the_worker_goes_on(
    redis_url: str, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    enqueue(redis_client, "lost", max_tokens=30)
    async with open_broker(settings(redis_url)) as broker, anyio.create_task_group() as tasks:
        worker = CountingWorker(broker, CountingEngine(pause_at=5))
        tasks.start_soon(worker.serve)
        await until(lambda: state_of(redis_client, "lost").get("seq") == "5")
        redis_client.flushall()
        redis_client.script_flush()
        await until(lambda: not worker.engine.running)
        assert broker.num_owned == 0
        assert [record.message for record in caplog.records if "lost" in record.message] == [
            "request lost: state lost from Redis; sequence dropped"
        ]
        worker.engine.pause_at = None
        enqueue(redis_client, "next", lane=3)
        await until(lambda: done_of(redis_client, "next") and queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    assert_served(redis_client, "next", 8)
    assert broker.counters.retries["noscript"] > 0
    assert not redis_client.exists(KEYS.request("lost"), KEYS.events("lost"))


async def test_requests_survive_a_killed_server(private_server: RedisServer) -> None:
    client = private_server.connect()
    names = [f"r{number}" for number in range(12)]
    for number, name in enumerate(names):
        enqueue(client, name, max_tokens=60, lane=number)
    config = settings(private_server.url, lease=1, timeout=2)
    async with open_broker(config) as broker, anyio.create_task_group() as tasks:
        worker = CountingWorker(broker, CountingEngine(capacity=4))
        tasks.start_soon(worker.serve)
        for goal in (10, 20, 30):
            await until(
                lambda n=goal: sum(int(state_of(client, name).get("seq", 0)) for name in names) > 15 * n
            )
            private_server.kill()
            private_server.start()
        await until(lambda: queue_is_empty(client), within=60)
        tasks.cancel_scope.cancel()
    for name in names:
        assert_served(client, name, 60)


@pytest.mark.parametrize(
    ("setting", "bad", "good", "kind"),
    [("maxmemory", "1", "0", "oom"), ("min-replicas-to-write", "1", "0", "down")],
)
async def test_a_server_that_refuses_writes_is_asked_again_until_it_accepts(
    private_server: RedisServer, setting: str, bad: str, good: str, kind: str
) -> None:
    client = private_server.connect()
    enqueue(client, "running", max_tokens=12)
    async with (
        open_broker(settings(private_server.url, lease=30)) as broker,
        anyio.create_task_group() as tasks,
    ):
        worker = CountingWorker(broker, CountingEngine(pause_at=5))
        tasks.start_soon(worker.serve)
        await until(lambda: state_of(client, "running").get("seq") == "5")
        enqueue(client, "ending", max_tokens=4)
        await until(lambda: done_of(client, "ending"))
        client.config_set(setting, bad)
        worker.engine.pause_at = 8
        await until(lambda: broker.counters.retries[kind] > 2)
        assert state_of(client, "running")["seq"] == "5"
        client.config_set(setting, good)
        worker.engine.pause_at = None
        await until(lambda: queue_is_empty(client))
        tasks.cancel_scope.cancel()
    assert_served(client, "running", 12)


async def test_a_full_server_can_still_be_told_of_ends(private_server: RedisServer) -> None:
    """An end makes the log smaller, so it must get through: it is the way out."""
    client = private_server.connect()
    enqueue(client, "a", max_tokens=12)
    async with (
        open_broker(settings(private_server.url, lease=30)) as broker,
        anyio.create_task_group() as tasks,
    ):
        worker = CountingWorker(broker, CountingEngine(pause_at=5))
        tasks.start_soon(worker.serve)
        await until(lambda: state_of(client, "a").get("seq") == "5")
        client.config_set("maxmemory", "1")
        worker.engine.pause_at = None
        await until(lambda: done_of(client, "a"))
        client.config_set("maxmemory", "0")
        await until(lambda: queue_is_empty(client))
        tasks.cancel_scope.cancel()
    assert_served(client, "a", 12)


async def test_a_server_that_does_not_answer_costs_time_but_no_request(private_server: RedisServer) -> None:
    client = private_server.connect()
    enqueue(client, "a", max_tokens=60)
    impatient = settings(private_server.url, lease=30, timeout=0.3)
    async with open_broker(impatient) as broker, anyio.create_task_group() as tasks:
        worker = CountingWorker(broker, CountingEngine(pause_at=5))
        tasks.start_soon(worker.serve)
        await until(lambda: state_of(client, "a").get("seq") == "5")
        private_server.pause()
        worker.engine.pause_at = 40
        await until(lambda: broker.counters.retries["timeout"] > 1)
        private_server.resume()
        worker.engine.pause_at = None
        await until(lambda: queue_is_empty(client))
        tasks.cancel_scope.cancel()
    assert_served(client, "a", 60)
    assert broker.counters.lost_claims == 0


async def test_a_replica_promoted_to_nothing_is_left_alone_until_it_can_be_written_to(
    private_server: RedisServer,
) -> None:
    client = private_server.connect()
    enqueue(client, "a", max_tokens=12)
    async with (
        open_broker(settings(private_server.url, lease=30)) as broker,
        anyio.create_task_group() as tasks,
    ):
        worker = CountingWorker(broker, CountingEngine(pause_at=5))
        tasks.start_soon(worker.serve)
        await until(lambda: state_of(client, "a").get("seq") == "5")
        client.replicaof("127.0.0.1", "1")
        worker.engine.pause_at = None
        await until(lambda: broker.counters.retries["readonly"] > 2)
        client.replicaof("NO", "ONE")
        await until(lambda: queue_is_empty(client))
        tasks.cancel_scope.cancel()
    assert_served(client, "a", 12)


async def test_an_end_that_redis_refuses_leaves_the_entry_until_it_is_a_dead_letter(
    redis_url: str, redis_client: redis.Redis
) -> None:
    enqueue(redis_client, "a", max_tokens=12)
    body = redis_client.xrange(KEYS.queue(MODEL, "normal", 0))[0][1][b"r"]
    config = settings(redis_url, lease=0.3, max_attempts=2)
    async with open_broker(config) as broker, anyio.create_task_group() as tasks:
        worker = CountingWorker(broker, CountingEngine(pause_at=5))
        tasks.start_soon(worker.serve)
        await until(lambda: state_of(redis_client, "a").get("seq") == "5")
        redis_client.set(KEYS.events("a"), "not a stream", ex=60)
        worker.engine.end("a", "length")
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    ((_, letter),) = redis_client.xrange(KEYS.dead(MODEL))
    assert letter[b"r"] == body
    assert b"WRONGTYPE" in letter[b"error"]
