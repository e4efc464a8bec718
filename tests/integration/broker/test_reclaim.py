"""Entries whose worker is gone: found, taken over once, and before new ones."""

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

from headrace.clients.protocol import GROUP, Delta
from headrace.worker.ageing import Ageing
from headrace.worker.broker import open_broker
from headrace.worker.broker.scripts import CLAIM, PRUNE, TAKE

pytestmark = pytest.mark.anyio

QUEUE = KEYS.queue(MODEL, "normal", 0)


def take_as(client: redis.Redis, consumer: str, room: int = 1) -> None:
    """A take whose reply nobody receives."""
    keys = [*KEYS.queues(MODEL), KEYS.service(MODEL)]
    arguments = [GROUP, consumer, 86_400_000, room, room, room, Ageing().ms, *Ageing().delays]
    client.eval(TAKE.text, len(keys), *keys, *arguments)


async def test_entries_taken_by_a_reply_that_was_lost_are_found_again(
    redis_url: str, redis_client: redis.Redis
) -> None:
    async with open_broker(settings(redis_url, lease=3)) as broker, anyio.create_task_group() as tasks:
        enqueue(redis_client, "a")
        take_as(redis_client, broker.consumer)
        tasks.start_soon(CountingWorker(broker).serve)
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    assert_served(redis_client, "a", 8)
    assert (broker.counters.taken, broker.counters.redelivered) == (0, 1)


async def test_orphans_go_before_new_requests_however_many_there_are(
    redis_url: str, redis_client: redis.Redis
) -> None:
    enqueue(redis_client, "orphan")
    take_as(redis_client, "gone")
    silence(redis_client, "gone")
    for number in range(40):
        enqueue(redis_client, f"new{number}", priority="high", lane=number % 16)
    async with open_broker(settings(redis_url, lease=600)) as broker, anyio.create_task_group() as tasks:
        worker = CountingWorker(broker, CountingEngine(capacity=1))
        tasks.start_soon(worker.serve)
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    assert worker.seen[0].request.id == "orphan"
    assert worker.most_running == 1


async def test_a_sweep_takes_no_more_than_there_is_room_for_and_reaches_every_orphan(
    redis_url: str, redis_client: redis.Redis
) -> None:
    names = [f"r{number}" for number in range(120)]
    for name in names:
        enqueue(redis_client, name, max_tokens=2)
    take_as(redis_client, "alive", 60)
    take_as(redis_client, "gone", 60)
    silence(redis_client, "gone")
    async with open_broker(settings(redis_url, lease=600)) as broker, anyio.create_task_group() as tasks:
        worker = CountingWorker(broker, CountingEngine(capacity=2))
        tasks.start_soon(worker.serve)
        await until(lambda: len(worker.seen) == 60 and broker.num_owned == 0)
        tasks.cancel_scope.cancel()
    assert worker.most_running <= 2
    assert [claim.request.id for claim in worker.seen] == names[60:]
    owners = {item["consumer"] for item in redis_client.xpending_range(QUEUE, GROUP, "-", "+", 1000)}
    assert owners == {b"alive"}


async def test_two_workers_do_not_both_take_an_orphan_over(redis_url: str, redis_client: redis.Redis) -> None:
    for number in range(20):
        enqueue(redis_client, f"r{number}")
    take_as(redis_client, "gone", 20)
    silence(redis_client, "gone")
    async with (
        open_broker(settings(redis_url, "one", lease=600)) as one,
        open_broker(settings(redis_url, "two", lease=600)) as two,
        anyio.create_task_group() as tasks,
    ):
        workers = [CountingWorker(broker, CountingEngine(capacity=4)) for broker in (one, two)]
        for worker in workers:
            tasks.start_soon(worker.serve)
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    for number in range(20):
        assert_served(redis_client, f"r{number}", 8)
        assert state_of(redis_client, f"r{number}")["epoch"] == "1"
    assert sum(len(worker.seen) for worker in workers) == 20


def attempted(client: redis.Redis, name: str, lane: int = 0, times: int = 2) -> None:
    """A request whose workers went silent without a word, so many times."""
    entry = enqueue(client, name, lane=lane)
    queue = KEYS.queue(MODEL, "normal", lane)
    take_as(client, "gone")
    client.execute_command("XCLAIM", queue, GROUP, "gone", 0, entry, "IDLE", 3_600_000, "RETRYCOUNT", times)
    place = f"{16 + lane}/{entry.decode()}"
    state = {"status": "running", "epoch": times, "attempts": times, "worker": "gone", "claimed": place}
    client.hset(KEYS.request(name), mapping=state | {"deliveries": times})
    client.pexpire(KEYS.request(name), 86_400_000)


async def test_suspects_are_shared_among_workers_and_keep_no_other_orphan_waiting(
    redis_url: str, redis_client: redis.Redis
) -> None:
    suspects = [f"s{number}" for number in range(6)]
    for number, name in enumerate(suspects):
        attempted(redis_client, name, lane=number % 2)
    for name in ("once", "handed-back"):
        attempted(redis_client, name, lane=2, times=1)
    redis_client.hset(KEYS.request("handed-back"), mapping={"attempts": 0, "deliveries": 1})
    async with (
        open_broker(settings(redis_url, "one", lease=600)) as one,
        open_broker(settings(redis_url, "two", lease=600)) as two,
        anyio.create_task_group() as tasks,
    ):
        workers = [CountingWorker(broker, CountingEngine(pause_at=3)) for broker in (one, two)]
        for worker in workers:
            tasks.start_soon(worker.serve)

        def run_by(worker: CountingWorker) -> list[str]:
            return [name for name in worker.engine.running if name in suspects]

        await until(lambda: all(len(run_by(worker)) == 1 for worker in workers))
        await until(lambda: sum(len(worker.engine.running) for worker in workers) == 4)
        enqueue(redis_client, "new")
        await until(lambda: any("new" in worker.engine.running for worker in workers))
        assert all(len(run_by(worker)) == 1 for worker in workers)
        for worker in workers:
            worker.engine.pause_at = None
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    for name in (*suspects, "once", "handed-back", "new"):
        assert done_of(redis_client, name) is not None
        deltas = [event for event in log_of(redis_client, name) if isinstance(event, Delta)]
        assert [token for delta in deltas for token in delta.tokens] == list(range(8))
    assert [state_of(redis_client, name)["attempts"] for name in suspects] == ["3"] * 6


def test_a_claim_by_a_former_owner_of_the_entry_is_refused(redis_client: redis.Redis) -> None:
    keys = [KEYS.request("a"), KEYS.events("a")]

    def claim(consumer: str, deliveries: int) -> list[bytes | int]:
        arguments = ["5-1", 16, deliveries, consumer, MODEL, "", 60_000, 5, 2, 0, GROUP, 0]
        reply = redis_client.eval(CLAIM.text, len(keys), *keys, *arguments)
        assert isinstance(reply, list)
        return [reply[0], *reply[2:4]]

    assert claim("heir", 2) == [b"run", 1, 1]
    assert claim("former", 1) == [b"stale"]
    assert claim("heir", 2) == [b"run", 1, 1]  # a repetition, whose first reply was lost
    assert claim("next", 3) == [b"run", 2, 2]
    assert state_of(redis_client, "a")["worker"] == "next"


def test_only_consumers_that_hold_nothing_and_are_silent_are_forgotten(redis_client: redis.Redis) -> None:
    enqueue(redis_client, "a")
    take_as(redis_client, "holder")
    redis_client.xgroup_createconsumer(QUEUE, GROUP, "gone")

    def prune(idle_ms: int) -> object:
        queues = KEYS.queues(MODEL)
        return redis_client.eval(PRUNE.text, len(queues), *queues, GROUP, idle_ms)

    assert prune(3_600_000) == 0
    while not prune(0):
        pass  # it must have been silent for a millisecond
    assert [consumer["name"] for consumer in redis_client.xinfo_consumers(QUEUE, GROUP)] == [b"holder"]
