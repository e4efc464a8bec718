"""Claims that move between workers: what one of them writes, the other can rely on."""

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
    silence,
    state_of,
    until,
)

from headrace.clients.protocol import Delta
from headrace.worker.broker import open_broker
from headrace.worker.engine.step import Delta as NewTokens

pytestmark = pytest.mark.anyio


async def test_another_worker_goes_on_where_a_killed_one_ended(
    redis_url: str, redis_client: redis.Redis
) -> None:
    enqueue(redis_client, "a", max_tokens=12)
    async with open_broker(settings(redis_url, "killed")) as broker, anyio.create_task_group() as tasks:
        tasks.start_soon(CountingWorker(broker, CountingEngine(pause_at=5)).serve)
        await until(lambda: state_of(redis_client, "a").get("seq") == "5")
        tasks.cancel_scope.cancel()
    async with open_broker(settings(redis_url, "heir")) as broker, anyio.create_task_group() as tasks:
        heir = CountingWorker(broker)
        tasks.start_soon(heir.serve)
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    assert heir.engine.first_tokens == {"a": 5}
    counters = broker.counters
    assert (counters.redelivered, counters.abandoned, counters.resumed) == (1, 1, 1)
    assert_served(redis_client, "a", 12)
    state = state_of(redis_client, "a")
    assert (state["epoch"], state["attempts"]) == ("2", "2")


async def test_a_paused_worker_that_comes_back_writes_nothing_and_drops_the_request(
    redis_url: str, redis_client: redis.Redis
) -> None:
    enqueue(redis_client, "a", max_tokens=12)
    async with (
        open_broker(settings(redis_url, "paused")) as paused_broker,
        open_broker(settings(redis_url, "heir")) as heir_broker,
        anyio.create_task_group() as tasks,
    ):
        paused = CountingWorker(paused_broker, CountingEngine(pause_at=5))
        async with anyio.create_task_group() as life:
            life.start_soon(paused.serve)
            await until(lambda: state_of(redis_client, "a").get("seq") == "5")
            life.cancel_scope.cancel()
        tasks.start_soon(CountingWorker(heir_broker, CountingEngine(pause_at=5)).serve)
        await until(lambda: state_of(redis_client, "a").get("epoch") == "2")
        before = redis_client.xrange(KEYS.events("a"))

        forged = [NewTokens("a", 1, 5, len(paused.engine.running["a"].text), [99], "forged")]
        paused_broker.outbox.put(forged, [])
        tasks.start_soon(paused_broker.outbox.run)
        await until(lambda: paused_broker.counters.lost_claims == 1)
        assert redis_client.xrange(KEYS.events("a")) == before
        interrupts = paused_broker.control.take()
        assert (interrupts.drop, interrupts.end) == ({"a": 1}, {})
        assert paused_broker.num_owned == 0
        tasks.cancel_scope.cancel()


async def test_a_heartbeat_does_not_steal_back_and_tells_what_was_lost(
    redis_url: str, redis_client: redis.Redis
) -> None:
    enqueue(redis_client, "a", max_tokens=12)
    enqueue(redis_client, "b", max_tokens=12)
    queue = KEYS.queue(MODEL, "normal", 0)
    async with open_broker(settings(redis_url)) as broker, anyio.create_task_group() as tasks:
        worker = CountingWorker(broker, CountingEngine(pause_at=5))
        tasks.start_soon(worker.serve)
        await until(lambda: sorted(worker.engine.running) == ["a", "b"])
        entry = redis_client.xrange(queue)[0][0]
        redis_client.xclaim(queue, "workers", "thief", 0, [entry])
        await until(lambda: sorted(worker.engine.running) == ["b"])
        owners = {
            item["message_id"]: item["consumer"]
            for item in redis_client.xpending_range(queue, "workers", "-", "+", 9)
        }
        assert owners[entry] == b"thief"
        await until(
            lambda: (
                min(
                    item["time_since_delivered"]
                    for item in redis_client.xpending_range(queue, "workers", "-", "+", 9)
                    if item["consumer"] != b"thief"
                )
                < 300
            )
        )
        assert state_of(redis_client, "a")["status"] == "running"
        tasks.cancel_scope.cancel()


async def test_a_worker_that_makes_no_progress_loses_its_requests(
    redis_url: str, redis_client: redis.Redis
) -> None:
    enqueue(redis_client, "a", max_tokens=12)
    alive = True
    async with (
        open_broker(settings(redis_url, "hung"), progressing=lambda: alive) as hung,
        open_broker(settings(redis_url, "heir")) as heir,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(CountingWorker(hung, CountingEngine(pause_at=5)).serve)
        await until(lambda: state_of(redis_client, "a").get("seq") == "5")
        hung.intake.stop()
        tasks.start_soon(CountingWorker(heir).serve)
        # As long as it makes progress it keeps its request, for many leases.
        renewals = hung.counters.round_trips
        await until(lambda: hung.counters.round_trips > renewals + 20)
        assert done_of(redis_client, "a") is None
        alive = False
        await until(lambda: done_of(redis_client, "a"))
        tasks.cancel_scope.cancel()
    assert_served(redis_client, "a", 12)


async def test_a_request_that_kills_its_workers_is_given_up_with_a_dead_letter(
    redis_url: str, redis_client: redis.Redis
) -> None:
    enqueue(redis_client, "poison", max_tokens=12, metadata="m")
    body = redis_client.xrange(KEYS.queue(MODEL, "normal", 0))[0][1][b"r"]
    limits = settings(redis_url, max_attempts=3, lease=600)
    for attempt in range(3):
        async with open_broker(limits) as broker, anyio.create_task_group() as tasks:
            worker = CountingWorker(broker, CountingEngine(pause_at=3))
            tasks.start_soon(worker.serve)
            await until(lambda n=attempt: state_of(redis_client, "poison").get("attempts") == str(n + 1))
            await until(lambda: state_of(redis_client, "poison").get("seq") == "3")
            tasks.cancel_scope.cancel()
        silence(redis_client, broker.consumer)
    async with open_broker(limits) as broker, anyio.create_task_group() as tasks:
        survivor = CountingWorker(broker)
        tasks.start_soon(survivor.serve)
        await until(lambda: broker.counters.dead_letters == 1)
        tasks.cancel_scope.cancel()
    assert survivor.seen == []
    done = done_of(redis_client, "poison")
    assert done is not None
    assert done.error is not None
    assert (done.seq, done.error.code, done.metadata) == (3, "too_many_attempts", "m")
    first = log_of(redis_client, "poison")[0]
    assert isinstance(first, Delta)
    assert first.tokens == [0, 1, 2]
    ((_, letter),) = redis_client.xrange(KEYS.dead(MODEL))
    assert letter[b"r"] == body
    assert letter[b"error"].startswith(b"too_many_attempts: ")
    assert queue_is_empty(redis_client)


async def test_an_attempt_that_got_further_before_its_worker_died_is_a_quarter_of_one(
    redis_url: str, redis_client: redis.Redis
) -> None:
    """Who is hit time and again by what others did is no poison; who kills a worker a token is, at last."""
    enqueue(redis_client, "a", max_tokens=20)
    limits = settings(redis_url, max_attempts=2, lease=600)
    for attempt in range(5):
        async with open_broker(limits) as broker, anyio.create_task_group() as tasks:
            tasks.start_soon(CountingWorker(broker, CountingEngine(pause_at=attempt + 1)).serve)
            await until(lambda n=attempt: state_of(redis_client, "a").get("seq") == str(n + 1))
            tasks.cancel_scope.cancel()
        silence(redis_client, broker.consumer)
    async with open_broker(limits) as broker, anyio.create_task_group() as tasks:
        tasks.start_soon(CountingWorker(broker).serve)
        await until(lambda: done_of(redis_client, "a"))
        tasks.cancel_scope.cancel()
    done = done_of(redis_client, "a")
    assert done is not None
    assert done.error is not None
    assert (done.seq, done.error.code) == (5, "too_many_attempts")
    assert state_of(redis_client, "a")["attempts"] == "6"


async def test_a_request_handed_back_is_charged_nothing_and_forgiven_nothing(
    redis_url: str, redis_client: redis.Redis
) -> None:
    enqueue(redis_client, "a", max_tokens=20)
    for attempt in range(3):
        async with open_broker(settings(redis_url)) as broker, anyio.create_task_group() as tasks:
            tasks.start_soon(CountingWorker(broker, CountingEngine(pause_at=attempt + 1)).serve)
            await until(lambda n=attempt: state_of(redis_client, "a").get("seq") == str(n + 1))
            await broker.hand_back()
            tasks.cancel_scope.cancel()
    state = state_of(redis_client, "a")
    assert (state["attempts"], state["epoch"], state.get("spared", "0")) == ("0", "3", "0")


async def test_a_crash_between_the_end_and_its_acknowledgement_only_settles(
    redis_url: str, redis_client: redis.Redis
) -> None:
    entry = enqueue(redis_client, "a", max_tokens=6)
    queue = KEYS.queue(MODEL, "normal", 0)
    body = redis_client.xrange(queue)[0][1][b"r"]
    async with open_broker(settings(redis_url, "first")) as broker, anyio.create_task_group() as tasks:
        tasks.start_soon(CountingWorker(broker).serve)
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    log = redis_client.xrange(KEYS.events("a"))
    # As it was before the acknowledgement: the entry pending with the first worker, its lease over.
    redis_client.delete(queue)
    redis_client.xgroup_create(queue, "workers", "0", mkstream=True)
    redis_client.xadd(queue, {"r": body}, id=entry)
    redis_client.execute_command("XREADGROUP", "GROUP", "workers", "first", "STREAMS", queue, ">")
    redis_client.xclaim(queue, "workers", "first", 0, [entry], idle=60_000, justid=True)
    async with open_broker(settings(redis_url, "second")) as broker, anyio.create_task_group() as tasks:
        second = CountingWorker(broker)
        tasks.start_soon(second.serve)
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    assert second.seen == []
    assert redis_client.xrange(KEYS.events("a")) == log
    assert redis_client.xrange(KEYS.dead(MODEL)) == []
