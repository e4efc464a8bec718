"""A server that comes back without its last second: an end that it forgot is told again before it counts."""

import anyio
import pytest
import redis
from counting_worker import (
    KEYS,
    MODEL,
    CountingWorker,
    assert_served,
    enqueue,
    log_of,
    queue_is_empty,
    settings,
    state_of,
    until,
    word,
)
from stepped_worker import SteppedConnection

from headrace.worker.broker import Broker, Claim, open_broker
from headrace.worker.broker.counters import Counters
from headrace.worker.broker.entries import UnrunResult
from headrace.worker.engine.step import Delta as NewTokens

pytestmark = pytest.mark.anyio


async def test_an_entry_is_not_settled_while_its_request_has_not_ended(
    redis_url: str, redis_client: redis.Redis
) -> None:
    """Otherwise the request would run for ever, in the books only: nobody would have its entry."""
    enqueue(redis_client, "a", max_tokens=3)
    async with open_broker(settings(redis_url)) as broker, anyio.create_task_group() as tasks:
        claim = await claimed(broker)
        before = redis_client.dump(KEYS.request("a"))
        ending = UnrunResult("a", claim.epoch, "length", [0, 1, 2], "w0 w1 w2 ")
        broker.outbox.put([], [ending])
        assert await broker.outbox.flush() is None
        assert state_of(redis_client, "a")["status"] == "finished"
        # The server restarts as it was before the end; the worker has the entry to settle still.
        redis_client.restore(KEYS.request("a"), 60_000, before, replace=True)
        redis_client.delete(KEYS.events("a"))
        assert await broker.outbox.flush() is None
        assert not queue_is_empty(redis_client)
        tasks.start_soon(broker.outbox.run)
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    assert state_of(redis_client, "a")["status"] == "finished"
    assert state_of(redis_client, "a")["finish_reason"] == "length"
    assert redis_client.xlen(KEYS.events("a")) == 2


async def test_an_entry_whose_state_is_gone_too_is_not_settled(
    redis_url: str, redis_client: redis.Redis
) -> None:
    """A bare entry from before what was lost: it has been accepted, and is to be served again."""
    enqueue(redis_client, "a", max_tokens=8)
    async with open_broker(settings(redis_url)) as broker, anyio.create_task_group() as tasks:
        claim = await claimed(broker)
        broker.outbox.put([], [UnrunResult("a", claim.epoch, "length", [0], "w")])
        assert await broker.outbox.flush() is None
        redis_client.delete(KEYS.request("a"), KEYS.events("a"))
        assert await broker.outbox.flush() is None
        assert not queue_is_empty(redis_client)
        tasks.start_soon(CountingWorker(broker).serve)
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    assert_served(redis_client, "a", 8)


async def test_an_entry_that_the_server_has_forgotten_is_not_claimed(
    redis_url: str, redis_client: redis.Redis
) -> None:
    """Its request would run without anyone to take it over."""
    enqueue(redis_client, "forgotten")
    enqueue(redis_client, "undelivered", lane=1)
    queue, other = KEYS.queue(MODEL, "normal", 0), KEYS.queue(MODEL, "normal", 1)
    async with open_broker(settings(redis_url)) as broker:
        broker.intake.offer((2, 2, 2))
        await broker.intake.pull()
        assert broker.intake.pulled == 2
        redis_client.delete(queue)
        redis_client.xgroup_destroy(other, "workers")
        await broker.intake.claim()
        assert (broker.intake.ready, broker.num_owned) == (0, 0)
    assert not redis_client.exists(KEYS.request("forgotten"), KEYS.request("undelivered"))
    assert redis_client.xlen(other) == 1


async def test_of_two_workers_in_one_epoch_only_the_one_that_redis_knows_writes(
    redis_url: str, redis_client: redis.Redis
) -> None:
    enqueue(redis_client, "a", max_tokens=8)
    queue = KEYS.queue(MODEL, "normal", 0)
    undelivered = redis_client.dump(queue)
    async with (
        open_broker(settings(redis_url, "first")) as first,
        open_broker(settings(redis_url, "second")) as second,
        anyio.create_task_group() as tasks,
    ):
        before = await claimed(first)
        redis_client.delete(KEYS.request("a"))
        redis_client.restore(queue, 0, undelivered, replace=True)
        after = await claimed(second)
        assert (before.epoch, after.epoch) == (1, 1)
        first.outbox.put([NewTokens("a", 1, 0, 0, [99], "forged")], [])
        assert await first.outbox.flush() is None
        assert first.counters.lost_claims == 1
        assert log_of(redis_client, "a") == []
        first.intake.stop()
        tasks.start_soon(second.outbox.run)
        second.outbox.put([], [UnrunResult("a", 1, "length", [0, 1], word(0) + word(1))])
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    assert [type(event).__name__ for event in log_of(redis_client, "a")] == ["Delta", "Done"]


async def test_in_a_cluster_an_end_is_told_again_after_a_failure_before_its_entry_is_settled(
    redis_url: str, redis_client: redis.Redis
) -> None:
    """There no script can look at both; a server that is no cluster has the same commands."""
    enqueue(redis_client, "a", max_tokens=1)
    configuration = settings(redis_url)
    object.__setattr__(configuration, "publish", "SPUBLISH")
    connection = SteppedConnection(redis_url, Counters(), timeout=20)
    broker = Broker(configuration, connection, record=dict, progressing=lambda: True)
    claim = await claimed(broker)
    before = redis_client.dump(KEYS.request("a"))
    broker.outbox.put([], [UnrunResult("a", claim.epoch, "length", [0], word(0))])
    assert await broker.outbox.flush() is None
    redis_client.restore(KEYS.request("a"), 60_000, before, replace=True)
    connection.fault = "request lost"
    with pytest.raises(redis.ConnectionError):
        await broker.outbox.flush()
    for _ in range(2):
        assert await broker.outbox.flush() is None
    assert (state_of(redis_client, "a")["status"], queue_is_empty(redis_client)) == ("finished", True)
    await connection.aclose()


async def claimed(broker: Broker) -> Claim:
    broker.intake.offer((1, 1, 1))
    await broker.intake.pull()
    await broker.intake.claim()
    return await broker.intake.next_claim()
