"""Redis cannot be reached for longer than a lease: requests stay where they are, and are charged nothing."""

import time
from collections.abc import Callable

import anyio
import pytest
import redis
from counting_worker import (
    KEYS,
    MODEL,
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

from headrace.clients.protocol import GROUP
from headrace.worker.broker import open_broker

pytestmark = pytest.mark.anyio

LEASE = 1.5
NAMES = [f"r{number}" for number in range(8)]


def full(server: RedisServer) -> Callable[[], object]:
    client = server.connect()
    client.config_set("maxmemory", "1")
    return lambda: client.config_set("maxmemory", "0")


def refusing(server: RedisServer) -> Callable[[], object]:
    client = server.connect()
    client.config_set("min-replicas-to-write", "1")
    return lambda: client.config_set("min-replicas-to-write", "0")


def frozen(server: RedisServer) -> Callable[[], object]:
    server.pause()
    return server.resume


def down(server: RedisServer) -> Callable[[], object]:
    server.kill()
    return server.start


@pytest.mark.parametrize("patience", [0.4, 20.0])
@pytest.mark.parametrize("outage", [full, refusing, frozen, down])
async def test_after_an_outage_longer_than_a_lease_nothing_has_moved_and_nothing_is_charged(
    private_server: RedisServer, outage: Callable[[RedisServer], Callable[[], object]], patience: float
) -> None:
    client = private_server.connect()
    for number, name in enumerate(NAMES):
        enqueue(client, name, max_tokens=60, lane=number)

    async with (
        open_broker(
            settings(private_server.url, "busy", lease=LEASE, timeout=patience),
            record=lambda: {"version": "1"},
        ) as busy,
        open_broker(
            settings(private_server.url, "idle", lease=LEASE, timeout=patience),
            record=lambda: {"version": "1"},
        ) as idle,
        anyio.create_task_group() as tasks,
    ):
        owner, other = CountingWorker(busy, CountingEngine(capacity=20, pause_at=5)), CountingWorker(idle)
        tasks.start_soon(owner.serve)
        await until(lambda: all(state_of(client, name).get("seq") == "5" for name in NAMES))
        tasks.start_soon(other.serve)
        await until(lambda: idle.leases.renewed_at > 0)
        for _ in range(2):
            repair = outage(private_server)
            await anyio.sleep(2 * LEASE)
            repair()
            renewed = time.monotonic()
            await until(lambda since=renewed: min(busy.leases.renewed_at, idle.leases.renewed_at) > since)
            await anyio.sleep(1.5 * LEASE)
        assert other.seen == []
        owner.engine.pause_at = None
        await until(lambda: queue_is_empty(client))
        tasks.cancel_scope.cancel()
    assert (busy.counters.lost_claims, idle.counters.redelivered) == (0, 0)
    for name in NAMES:
        assert_served(client, name, 60)
        state = state_of(client, name)
        assert (state["epoch"], state["attempts"]) == ("1", "1")


@pytest.mark.parametrize("outage", [frozen, down])
async def test_requests_of_a_worker_that_died_are_taken_over_after_an_outage_and_not_charged(
    private_server: RedisServer, outage: Callable[[RedisServer], Callable[[], object]]
) -> None:
    client = private_server.connect()
    enqueue(client, "a", max_tokens=12)
    async with (
        open_broker(settings(private_server.url, "heir", lease=LEASE, timeout=0.4)) as broker,
        anyio.create_task_group() as tasks,
    ):
        async with (
            open_broker(settings(private_server.url, "dying", lease=LEASE, timeout=0.4)) as dying,
            anyio.create_task_group() as life,
        ):
            life.start_soon(CountingWorker(dying, CountingEngine(pause_at=5)).serve)
            await until(lambda: state_of(client, "a").get("seq") == "5")
            heir = CountingWorker(broker)
            tasks.start_soon(heir.serve)
            await until(lambda: broker.leases.renewed_at > 0)
            life.cancel_scope.cancel()
        repair = outage(private_server)
        await anyio.sleep(2 * LEASE)
        repair()
        await until(lambda: queue_is_empty(client))
        tasks.cancel_scope.cancel()
    assert_served(client, "a", 12)
    state = state_of(client, "a")
    assert (state["epoch"], state["attempts"]) == ("2", "1")
    assert broker.counters.redelivered == 1


async def test_whoever_stood_still_while_it_renewed_charges_an_attempt_whose_worker_died(
    redis_url: str, redis_client: redis.Redis
) -> None:
    """Redis answered all the while; a request that kills workers on a busy machine must end there too."""
    enqueue(redis_client, "a", max_tokens=12)
    limits = settings(redis_url, lease=LEASE)
    async with open_broker(limits) as broker, anyio.create_task_group() as tasks:
        tasks.start_soon(CountingWorker(broker, CountingEngine(pause_at=5)).serve)
        await until(lambda: state_of(redis_client, "a").get("seq") == "5")
        tasks.cancel_scope.cancel()
    stalls = [0.6 * LEASE]

    def record() -> dict[str, str]:
        if stalls:
            time.sleep(stalls.pop())
        return {"version": "1"}

    async with open_broker(limits, record=record) as broker, anyio.create_task_group() as tasks:
        tasks.start_soon(CountingWorker(broker).serve)
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    assert_served(redis_client, "a", 12)
    assert state_of(redis_client, "a")["attempts"] == "2"


@pytest.mark.parametrize("claimed_first", [True, False])
async def test_a_worker_that_alone_was_cut_off_loses_its_request_and_takes_the_charge_back(
    redis_server: RedisServer, redis_client: redis.Redis, claimed_first: bool
) -> None:
    enqueue(redis_client, "a", max_tokens=12)
    with cuttable(redis_server.url) as proxy:
        url = proxy.url.replace("http", "redis") + "/0"
        async with (
            open_broker(settings(url, "cut-off", lease=LEASE)) as broker,
            open_broker(settings(redis_server.url, "heir", lease=LEASE)) as heir_broker,
            anyio.create_task_group() as tasks,
        ):
            worker = CountingWorker(broker, CountingEngine(pause_at=5))
            tasks.start_soon(worker.serve)
            await until(lambda: state_of(redis_client, "a").get("seq") == "5")
            proxy.cut()
            heir = CountingWorker(heir_broker, CountingEngine(pause_at=8))
            if claimed_first:
                tasks.start_soon(heir.serve)
                await until(lambda: state_of(redis_client, "a").get("seq") == "8")
                assert state_of(redis_client, "a")["attempts"] == "2"
            else:
                await anyio.sleep(LEASE)  # so that a renewal has failed
                queue = KEYS.queue(MODEL, "normal", 0)
                (entry,) = redis_client.xpending_range(queue, GROUP, "-", "+", 1)
                redis_client.xclaim(queue, GROUP, "taker", 0, [entry["message_id"]])
            proxy.mend()
            await until(lambda: not worker.engine.running)
            charged = "1" if claimed_first else "0"
            await until(lambda: state_of(redis_client, "a")["attempts"] == charged)
            assert state_of(redis_client, "a").get("spared", "0") == "0"
            if not claimed_first:
                tasks.start_soon(heir.serve)
            worker.engine.pause_at = heir.engine.pause_at = None  # either may be the one that goes on
            await until(lambda: queue_is_empty(redis_client))
            tasks.cancel_scope.cancel()
    assert_served(redis_client, "a", 12)
    state = state_of(redis_client, "a")
    assert (state["epoch"], state["attempts"]) == ("2", "1")


async def test_a_worker_that_was_itself_silent_is_charged_though_it_comes_back(
    redis_url: str, redis_client: redis.Redis
) -> None:
    """What held it up may be the request."""
    enqueue(redis_client, "a", max_tokens=12)
    alive = True
    async with (
        open_broker(settings(redis_url, "silent", lease=0.6), progressing=lambda: alive) as broker,
        open_broker(settings(redis_url, "heir", lease=0.6)) as heir_broker,
        anyio.create_task_group() as tasks,
    ):
        worker = CountingWorker(broker, CountingEngine(pause_at=5))
        tasks.start_soon(worker.serve)
        await until(lambda: state_of(redis_client, "a").get("seq") == "5")
        alive = False
        tasks.start_soon(CountingWorker(heir_broker, CountingEngine(pause_at=8)).serve)
        await until(lambda: state_of(redis_client, "a").get("seq") == "8")
        alive = True
        worker.engine.pause_at = 6
        await until(lambda: not worker.engine.running)
        renewed = broker.leases.renewed_at
        await until(lambda: broker.leases.renewed_at > renewed + 0.4)
        assert state_of(redis_client, "a")["attempts"] == "2"
        redis_client.hset(KEYS.request("a"), "cancel", 1)
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
