"""Leaving without loss: what is not finished goes on elsewhere at once."""

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
    queue_is_empty,
    settings,
    state_of,
    until,
)

from headrace.worker.broker import open_broker

pytestmark = pytest.mark.anyio


async def test_requests_handed_back_go_on_elsewhere_without_waiting_for_the_lease(
    redis_url: str, redis_client: redis.Redis
) -> None:
    for name in ("a", "b", "c"):
        enqueue(redis_client, name, max_tokens=12)
    long = {"lease": 3600.0, "max_attempts": 1}
    async with (
        open_broker(settings(redis_url, "leaving", **long), record=lambda: {"running": 1}) as leaving_broker,
        open_broker(settings(redis_url, "staying", **long)) as staying_broker,
        anyio.create_task_group() as tasks,
    ):
        leaving = CountingWorker(leaving_broker, CountingEngine(pause_at=5))
        async with anyio.create_task_group() as life:
            life.start_soon(leaving.serve)
            await until(lambda: all(state_of(redis_client, name).get("seq") == "5" for name in "abc"))
            tasks.start_soon(CountingWorker(staying_broker).serve)
            await until(lambda: redis_client.pubsub_numsub(KEYS.control(MODEL))[0][1] == 2)
            assert redis_client.exists(KEYS.worker(MODEL, "leaving"))
            leaving_broker.intake.stop()
            await leaving_broker.outbox.flushed()
            assert await leaving_broker.hand_back() == 3
            life.cancel_scope.cancel()
        assert leaving_broker.num_owned == 0
        assert not redis_client.exists(KEYS.worker(MODEL, "leaving"))
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    assert (staying_broker.counters.redelivered, staying_broker.counters.abandoned) == (3, 0)
    for name in ("a", "b", "c"):
        assert_served(redis_client, name, 12)
        # Handed back is not failed: one attempt is all that is allowed, and the second claim was in order.
        assert (state_of(redis_client, name)["epoch"], state_of(redis_client, name)["attempts"]) == ("2", "1")


async def test_a_stopped_intake_leaves_new_requests_to_others(
    redis_url: str, redis_client: redis.Redis
) -> None:
    async with open_broker(settings(redis_url)) as broker, anyio.create_task_group() as tasks:
        worker = CountingWorker(broker)
        tasks.start_soon(worker.serve)
        enqueue(redis_client, "before")
        await until(lambda: done_of(redis_client, "before"))
        await broker.intake.stopped()
        enqueue(redis_client, "after")
        renewals = broker.counters.round_trips
        await until(lambda: broker.counters.round_trips > renewals + 5)
        assert [claim.request.id for claim in worker.seen] == ["before"]
        assert redis_client.xpending(KEYS.queue(MODEL, "normal", 0), "workers")["pending"] == 0
        tasks.cancel_scope.cancel()


async def test_a_worker_that_hangs_can_still_hand_back(redis_url: str, redis_client: redis.Redis) -> None:
    enqueue(redis_client, "a", max_tokens=12)
    alive = True
    long = settings(redis_url, "hung", lease=3600)
    async with open_broker(long, progressing=lambda: alive) as broker, anyio.create_task_group() as tasks:
        tasks.start_soon(CountingWorker(broker, CountingEngine(pause_at=5)).serve)
        await until(lambda: state_of(redis_client, "a").get("seq") == "5")
        alive = False
        assert await broker.hand_back() == 1
        tasks.cancel_scope.cancel()
    async with open_broker(settings(redis_url, lease=3600)) as broker, anyio.create_task_group() as tasks:
        tasks.start_soon(CountingWorker(broker).serve)
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    assert_served(redis_client, "a", 12)


async def test_the_worker_record_tells_of_itself_and_expires(
    redis_url: str, redis_client: redis.Redis
) -> None:
    key = KEYS.worker(MODEL, "w")
    record = {"model": MODEL, "version": "1", "running": 3, "tokens_per_second": 1.5}
    async with (
        open_broker(settings(redis_url), record=lambda: record) as broker,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(broker.run)
        await until(lambda: redis_client.exists(key))
        fields = redis_client.hgetall(key)
        started = fields.pop(b"started")
        assert abs(int(started) - int(fields[b"updated"])) < 60_000
        seconds, _ = redis_client.time()
        assert abs(int(fields.pop(b"updated")) - seconds * 1000) < 60_000
        assert fields == {b"model": b"m", b"version": b"1", b"running": b"3", b"tokens_per_second": b"1.5"}
        first = redis_client.hget(key, "updated")
        await until(lambda: redis_client.hget(key, "updated") != first)
        assert abs(int(redis_client.hget(key, "started") or 0) - int(started)) < 60_000
        tasks.cancel_scope.cancel()
    await until(lambda: not redis_client.exists(key))


async def test_the_record_of_a_worker_that_died_and_was_started_again_tells_of_the_new_one(
    redis_url: str, redis_client: redis.Redis
) -> None:
    key = KEYS.worker(MODEL, "w")
    seconds, _ = redis_client.time()
    old = seconds * 1000 - 86_400_000
    redis_client.hset(key, "started", old)
    redis_client.pexpire(key, 60_000)
    async with open_broker(settings(redis_url), record=lambda: {"model": MODEL}) as broker:
        await broker.leases.renew()
    started = redis_client.hget(key, "started")
    assert started is not None
    assert int(started) > old + 80_000_000
