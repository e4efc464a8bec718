"""Cancelling and deadlines: in the queue, while running, and while no worker is alive."""

import time

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
    notice,
    queue_is_empty,
    settings,
    state_of,
    until,
)

from headrace.clients.protocol import Delta
from headrace.worker.broker import open_broker

pytestmark = pytest.mark.anyio


def redis_ms(client: redis.Redis) -> int:
    seconds, micros = client.time()
    return seconds * 1000 + micros // 1000


async def test_cancelled_in_the_queue_it_ends_without_computation(
    redis_url: str, redis_client: redis.Redis
) -> None:
    enqueue(redis_client, "a", metadata=7)
    redis_client.hset(KEYS.request("a"), mapping={"status": "queued", "epoch": 0, "cancel": 1})
    async with open_broker(settings(redis_url)) as broker, anyio.create_task_group() as tasks:
        worker = CountingWorker(broker)
        tasks.start_soon(worker.serve)
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    assert worker.seen == []
    done = done_of(redis_client, "a")
    assert done is not None
    assert (done.finish_reason, done.seq, done.metadata, done.error) == ("cancelled", 0, 7, None)


@pytest.mark.parametrize("announced", [True, False])
async def test_cancelled_while_running_it_ends_with_what_it_has(
    redis_url: str, redis_client: redis.Redis, announced: bool
) -> None:
    """The notice makes it quick; without one, the flag comes back with the next emit or heartbeat."""
    enqueue(redis_client, "a", max_tokens=12)
    lease = 360 if announced else 0.6
    async with open_broker(settings(redis_url, lease=lease)) as broker, anyio.create_task_group() as tasks:
        tasks.start_soon(CountingWorker(broker, CountingEngine(pause_at=5)).serve)
        await until(lambda: state_of(redis_client, "a").get("seq") == "5")
        if announced:
            await until(lambda: redis_client.pubsub_numsub(KEYS.control(MODEL))[0][1] == 1)
        redis_client.hset(KEYS.request("a"), "cancel", 1)
        if announced:
            redis_client.publish(KEYS.control(MODEL), b"\xc1 noise")
            redis_client.publish(KEYS.control(MODEL), notice(cancel="someone else's"))
            redis_client.publish(KEYS.control(MODEL), notice(cancel="a", later_field=1))
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    done = done_of(redis_client, "a")
    assert done is not None
    assert (done.finish_reason, done.seq) == ("cancelled", 5)
    delta = log_of(redis_client, "a")[0]
    assert isinstance(delta, Delta)
    assert delta.tokens == [0, 1, 2, 3, 4]


async def test_cancelled_after_its_worker_died_it_ends_once_with_what_it_had(
    redis_url: str, redis_client: redis.Redis
) -> None:
    enqueue(redis_client, "a", max_tokens=12)
    async with open_broker(settings(redis_url, "killed")) as broker, anyio.create_task_group() as tasks:
        tasks.start_soon(CountingWorker(broker, CountingEngine(pause_at=5)).serve)
        await until(lambda: state_of(redis_client, "a").get("seq") == "5")
        tasks.cancel_scope.cancel()
    redis_client.hset(KEYS.request("a"), "cancel", 1)
    async with open_broker(settings(redis_url, "heir")) as broker, anyio.create_task_group() as tasks:
        heir = CountingWorker(broker)
        tasks.start_soon(heir.serve)
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    assert heir.seen == []
    done = done_of(redis_client, "a")
    assert done is not None
    assert (done.finish_reason, done.seq, done.usage.completion_tokens) == ("cancelled", 5, 5)


async def test_expired_in_the_queue_it_costs_no_computation(
    redis_url: str, redis_client: redis.Redis
) -> None:
    now = redis_ms(redis_client)
    enqueue(redis_client, "late", deadline=now - 1)
    enqueue(redis_client, "early", deadline=now + 600_000)
    async with open_broker(settings(redis_url)) as broker, anyio.create_task_group() as tasks:
        worker = CountingWorker(broker)
        tasks.start_soon(worker.serve)
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    assert [claim.request.id for claim in worker.seen] == ["early"]
    done = done_of(redis_client, "late")
    assert done is not None
    assert (done.finish_reason, done.seq) == ("expired", 0)


async def test_a_deadline_passes_by_the_clock_of_redis_not_of_this_machine(
    redis_url: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong_by = -86400.0
    true_time = time.time
    monkeypatch.setattr("headrace.worker.broker.clock.time.time", lambda: true_time() + wrong_by)
    enqueue(redis_client, "a", max_tokens=12, deadline=redis_ms(redis_client) + 700)
    async with open_broker(settings(redis_url)) as broker, anyio.create_task_group() as tasks:
        tasks.start_soon(CountingWorker(broker, CountingEngine(pause_at=5)).serve)
        await until(lambda: queue_is_empty(redis_client))
        assert abs(broker.clock.now_ms() - redis_ms(redis_client)) < 10_000
        tasks.cancel_scope.cancel()
    done = done_of(redis_client, "a")
    assert done is not None
    assert done.finish_reason == "expired"
    assert int(state_of(redis_client, "a")["finished"]) >= int(state_of(redis_client, "a")["created"])


async def test_cancelled_between_claim_and_serve_loop_it_is_never_handed_out(
    redis_url: str, redis_client: redis.Redis
) -> None:
    enqueue(redis_client, "a")
    async with open_broker(settings(redis_url)) as broker, anyio.create_task_group() as tasks:
        tasks.start_soon(broker.run)
        broker.intake.offer((2, 2, 2))
        await until(lambda: state_of(redis_client, "a").get("status") == "running")
        redis_client.hset(KEYS.request("a"), "cancel", 1)
        # A serve loop that is busy with something else takes note of it first, and of the claim then.
        await until(lambda: broker.control.take().end == {"a": "cancelled"})
        enqueue(redis_client, "b")
        with anyio.fail_after(20):
            assert (await broker.intake.next_claim()).request.id == "b"
        await until(lambda: done_of(redis_client, "a"))
        tasks.cancel_scope.cancel()
    done = done_of(redis_client, "a")
    assert done is not None
    assert (done.finish_reason, done.seq) == ("cancelled", 0)


async def test_what_ended_before_it_was_handed_out_gives_its_room_back(
    redis_url: str, redis_client: redis.Redis
) -> None:
    """An idle worker would otherwise have less room for ever: nothing makes it offer any anew."""
    enqueue(redis_client, "a")
    async with open_broker(settings(redis_url)) as broker, anyio.create_task_group() as tasks:
        tasks.start_soon(broker.run)
        broker.intake.offer((1, 1, 1))
        await until(lambda: broker.intake.ready == 1)
        redis_client.publish(KEYS.control(MODEL), notice(cancel="a"))
        await until(lambda: "a" in broker.control.take().end or done_of(redis_client, "a") is not None)
        enqueue(redis_client, "b")
        with anyio.fail_after(20):
            assert (await broker.intake.next_claim()).request.id == "b"
        tasks.cancel_scope.cancel()


async def test_a_request_lost_and_claimed_again_is_handed_out_after_its_loss_was_told(
    redis_url: str, redis_client: redis.Redis
) -> None:
    """The serve loop drops by request id, and the new claim may have the old one's epoch."""
    enqueue(redis_client, "a", max_tokens=12)
    async with open_broker(settings(redis_url)) as broker, anyio.create_task_group() as tasks:
        worker = CountingWorker(broker, CountingEngine(pause_at=5))
        tasks.start_soon(broker.run)
        broker.intake.offer((2, 2, 2))
        with anyio.fail_after(20):
            await worker.receive()
        worker.join_batch()
        redis_client.delete(KEYS.request("a"))  # its entry is then taken as if it were new
        await until(lambda: broker.counters.lost_claims == 1)
        await until(lambda: state_of(redis_client, "a").get("status") == "running")
        step = worker.engine.step()  # of the old claim
        broker.outbox.put(step.deltas, step.finished)
        tasks.start_soon(worker.receive)
        seen = broker.counters.round_trips
        await until(lambda: broker.counters.round_trips > seen + 4)
        assert len(worker.seen) == 1
        assert list(worker.engine.running) == ["a"]
        worker.join_batch()
        assert not worker.engine.running
        await until(lambda: len(worker.seen) == 2)
        assert worker.seen[1].epoch == 1
        worker.engine.pause_at = None
        with anyio.fail_after(20):
            while done_of(redis_client, "a") is None:
                await worker.step()
                await anyio.sleep(0.005)
        tasks.cancel_scope.cancel()
    assert_served(redis_client, "a", 12)
