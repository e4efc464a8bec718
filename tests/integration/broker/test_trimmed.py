"""Entries that somebody else takes off the queue: trimmed, deleted, with the stream or one by one."""

from collections.abc import AsyncIterator, Callable

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

from headrace.clients import AsyncClient, QueueFull, UnknownRequest
from headrace.clients.protocol import GROUP
from headrace.worker.broker import open_broker

pytestmark = pytest.mark.anyio
QUEUE = KEYS.queue(MODEL, "normal", 0)


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(redis_url, model=MODEL) as client:
        yield client


def a_while_passes(server: redis.Redis, *names: str) -> None:
    """The requests were last enqueued long ago."""
    for name in names:
        server.hset(KEYS.request(name), "entry", "1-1")


def trim(server: redis.Redis) -> None:
    server.xtrim(QUEUE, maxlen=0, approximate=False)


def delete_key(server: redis.Redis) -> None:
    server.delete(QUEUE)


def delete_second(server: redis.Redis) -> None:
    entries = server.xrange(QUEUE)
    server.xdel(QUEUE, entries[1][0])


async def serve_all(server: redis.Redis, url: str) -> CountingWorker:
    async with open_broker(settings(url)) as broker, anyio.create_task_group() as tasks:
        worker = CountingWorker(broker)
        tasks.start_soon(worker.serve)
        await until(lambda: queue_is_empty(server))
        tasks.cancel_scope.cancel()
    return worker


@pytest.mark.parametrize("lose", [trim, delete_key, delete_second])
async def test_submitting_again_puts_a_lost_entry_back(
    client: AsyncClient, redis_url: str, redis_client: redis.Redis, lose: Callable[[redis.Redis], None]
) -> None:
    names = ["a", "b", "c"]
    for name in names:
        await client.submit("p", id=name, max_tokens=8)
    lose(redis_client)
    a_while_passes(redis_client, *names)
    for name in names:
        await client.submit("p", id=name, max_tokens=8)
    worker = await serve_all(redis_client, redis_url)
    for name in names:
        assert_served(redis_client, name, 8)
    assert sorted(claim.request.id for claim in worker.seen) == names


async def test_submitting_again_adds_one_entry_at_a_time(
    client: AsyncClient, redis_url: str, redis_client: redis.Redis
) -> None:
    await client.submit("p", id="a", max_tokens=8)
    a_while_passes(redis_client, "a")
    for _ in range(5):
        await client.submit("p", id="a", max_tokens=8)
    assert redis_client.xlen(QUEUE) == 2
    worker = await serve_all(redis_client, redis_url)
    assert len(worker.seen) == 1
    assert_served(redis_client, "a", 8)


async def test_what_is_known_needs_no_room_in_a_full_queue(redis_url: str, redis_client: redis.Redis) -> None:
    async with AsyncClient(redis_url, model=MODEL, queue_limit=1) as client:
        await client.submit("p", id="a")
        a_while_passes(redis_client, "a")
        await client.submit("p", id="a")
        assert redis_client.xlen(QUEUE) == 1
        with pytest.raises(QueueFull):
            await client.submit("p", id="b")


async def test_what_has_ended_is_not_enqueued_again(
    client: AsyncClient, redis_url: str, redis_client: redis.Redis
) -> None:
    await client.submit("p", id="a", max_tokens=8)
    await serve_all(redis_client, redis_url)
    a_while_passes(redis_client, "a")
    await client.submit("p", id="a", max_tokens=8)
    assert redis_client.xlen(QUEUE) == 0


async def test_a_request_whose_worker_died_and_whose_entry_is_gone_is_resumed_when_submitted_again(
    client: AsyncClient, redis_url: str, redis_client: redis.Redis
) -> None:
    await client.submit("p", id="a", max_tokens=8)
    async with open_broker(settings(redis_url, "dies")) as broker, anyio.create_task_group() as tasks:
        tasks.start_soon(CountingWorker(broker, CountingEngine(pause_at=3)).serve)
        await until(lambda: state_of(redis_client, "a").get("seq") == "3")
        tasks.cancel_scope.cancel()
    trim(redis_client)
    a_while_passes(redis_client, "a")
    await client.submit("p", id="a", max_tokens=8)
    worker = await serve_all(redis_client, redis_url)
    assert worker.engine.first_tokens == {"a": 3}
    assert_served(redis_client, "a", 8)


async def test_a_request_that_was_handed_back_and_whose_entry_is_gone_is_resumed_when_submitted_again(
    client: AsyncClient, redis_url: str, redis_client: redis.Redis
) -> None:
    await client.submit("p", id="a", max_tokens=8)
    async with open_broker(settings(redis_url, "leaves")) as broker, anyio.create_task_group() as tasks:
        tasks.start_soon(CountingWorker(broker, CountingEngine(pause_at=3)).serve)
        await until(lambda: state_of(redis_client, "a").get("seq") == "3")
        await broker.hand_back()
        tasks.cancel_scope.cancel()
    trim(redis_client)
    a_while_passes(redis_client, "a")
    await client.submit("p", id="a", max_tokens=8)
    worker = await serve_all(redis_client, redis_url)
    assert worker.engine.first_tokens == {"a": 3}
    assert_served(redis_client, "a", 8)
    assert state_of(redis_client, "a")["attempts"] == "1"


async def test_a_second_entry_does_not_disturb_a_request_that_runs(
    client: AsyncClient, redis_url: str, redis_client: redis.Redis
) -> None:
    await client.submit("p", id="a", max_tokens=8)
    async with open_broker(settings(redis_url)) as broker, anyio.create_task_group() as tasks:
        worker = CountingWorker(broker, CountingEngine(pause_at=3))
        tasks.start_soon(worker.serve)
        await until(lambda: state_of(redis_client, "a").get("seq") == "3")
        a_while_passes(redis_client, "a")
        await client.submit("p", id="a", max_tokens=8)
        await until(lambda: broker.counters.duplicates == 1)
        worker.engine.pause_at = None
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    assert len(worker.seen) == 1
    assert_served(redis_client, "a", 8)


@pytest.mark.parametrize("lose", [trim, delete_key, delete_second])
async def test_a_worker_puts_the_entries_of_what_it_runs_back(
    redis_url: str, redis_client: redis.Redis, lose: Callable[[redis.Redis], None]
) -> None:
    names = ["a", "b", "c"]
    for name in names:
        enqueue(redis_client, name)
    async with open_broker(settings(redis_url)) as broker, anyio.create_task_group() as tasks:
        worker = CountingWorker(broker, CountingEngine(pause_at=3))
        tasks.start_soon(worker.serve)
        await until(lambda: all(state_of(redis_client, name).get("seq") == "3" for name in names))
        lose(redis_client)
        await until(lambda: redis_client.xlen(QUEUE) == 3)
        await until(
            lambda: broker.counters.put_back >= 1 and redis_client.xpending(QUEUE, GROUP)["pending"] == 3
        )
        tasks.cancel_scope.cancel()
    # It dies: another one goes on with all of them.
    worker = await serve_all(redis_client, redis_url)
    assert worker.engine.first_tokens == dict.fromkeys(names, 3)
    for name in names:
        assert_served(redis_client, name, 8)
        assert state_of(redis_client, name)["attempts"] == "2"


async def test_what_runs_goes_on_while_its_entry_is_put_back(
    redis_url: str, redis_client: redis.Redis
) -> None:
    enqueue(redis_client, "a")
    async with open_broker(settings(redis_url)) as broker, anyio.create_task_group() as tasks:
        worker = CountingWorker(broker, CountingEngine(pause_at=3))
        tasks.start_soon(worker.serve)
        await until(lambda: state_of(redis_client, "a").get("seq") == "3")
        for times in (1, 2):
            trim(redis_client)
            await until(lambda times=times: broker.counters.put_back == times)
        worker.engine.pause_at = None
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    assert len(worker.seen) == 1
    assert_served(redis_client, "a", 8)
    assert state_of(redis_client, "a")["epoch"] == "1"


async def test_an_entry_put_back_behind_others_costs_the_request_no_attempt(
    redis_url: str, redis_client: redis.Redis
) -> None:
    """The worker that takes the new entry resumes the request, also while its former worker is alive."""
    enqueue(redis_client, "a")
    async with (
        open_broker(settings(redis_url, "first")) as first,
        open_broker(settings(redis_url, "second")) as second,
        anyio.create_task_group() as tasks,
    ):
        slow = CountingWorker(first, CountingEngine(capacity=1, pause_at=3))
        tasks.start_soon(slow.serve)
        await until(lambda: state_of(redis_client, "a").get("seq") == "3")
        trim(redis_client)
        enqueue(redis_client, "before")
        await until(lambda: first.counters.put_back == 1)
        tasks.start_soon(CountingWorker(second).serve)
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    for name in ("a", "before"):
        assert_served(redis_client, name, 8)
        assert state_of(redis_client, name)["attempts"] == "1"


async def test_nothing_is_put_back_of_what_the_server_has_forgotten_altogether(
    redis_url: str, redis_client: redis.Redis
) -> None:
    enqueue(redis_client, "a")
    async with open_broker(settings(redis_url)) as broker, anyio.create_task_group() as tasks:
        worker = CountingWorker(broker, CountingEngine(pause_at=3))
        tasks.start_soon(worker.serve)
        await until(lambda: state_of(redis_client, "a").get("seq") == "3")
        redis_client.flushall()
        await until(lambda: not worker.engine.running)
        tasks.cancel_scope.cancel()
    assert not redis_client.xlen(QUEUE)
    assert broker.counters.put_back == 0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.clients.follow._LONGEST_SILENCE", 2.0)
    monkeypatch.setattr("headrace.clients.follow._ENQUEUED_WITHIN", 0.5)


@pytest.mark.usefixtures("impatient")
async def test_whoever_follows_a_request_without_an_entry_is_told_and_nobody_else(
    client: AsyncClient, redis_url: str, redis_client: redis.Redis
) -> None:
    async with open_broker(settings(redis_url)) as broker, anyio.create_task_group() as tasks:
        worker = CountingWorker(broker, CountingEngine(capacity=1, pause_at=3))
        tasks.start_soon(worker.serve)
        for name in ("runs", "waits", "lost"):
            await client.submit("p", id=name, max_tokens=8)
        await until(lambda: state_of(redis_client, "runs").get("seq") == "3")
        redis_client.xdel(QUEUE, state_of(redis_client, "lost")["entry"])
        results: dict[str, object] = {}

        async def follow(name: str) -> None:
            results[name] = (await client.attach(name).result()).tokens

        tasks.start_soon(follow, "runs")
        tasks.start_soon(follow, "waits")
        with anyio.fail_after(30), pytest.raises(UnknownRequest):
            await client.attach("lost").result()
        await client.submit("p", id="lost", max_tokens=8)
        await anyio.sleep(5)  # those that wait have asked by now
        worker.engine.pause_at = None
        assert (await client.attach("lost").result()).tokens == list(range(8))
        await until(lambda: len(results) == 2)
        tasks.cancel_scope.cancel()
    assert results == {"runs": list(range(8)), "waits": list(range(8))}
    assert len(worker.seen) == 3


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("handed_back", [True, False])
async def test_whoever_follows_what_nobody_can_take_over_is_told(
    client: AsyncClient, redis_url: str, redis_client: redis.Redis, handed_back: bool
) -> None:
    await client.submit("p", id="a", max_tokens=8)
    async with open_broker(settings(redis_url, "dies")) as broker, anyio.create_task_group() as tasks:
        tasks.start_soon(CountingWorker(broker, CountingEngine(pause_at=3)).serve)
        await until(lambda: state_of(redis_client, "a").get("seq") == "3")
        if handed_back:
            await broker.hand_back()
        tasks.cancel_scope.cancel()
    trim(redis_client)
    async with open_broker(settings(redis_url, "other")) as broker, anyio.create_task_group() as tasks:
        worker = CountingWorker(broker)
        tasks.start_soon(worker.serve)
        with anyio.fail_after(30), pytest.raises(UnknownRequest):
            await client.attach("a").result()
        await client.submit("p", id="a", max_tokens=8)
        assert (await client.attach("a").result()).tokens == list(range(8))
        tasks.cancel_scope.cancel()
    assert worker.engine.first_tokens == {"a": 3}


async def test_a_place_that_a_client_has_forged_hurts_nobody(
    redis_url: str, redis_client: redis.Redis
) -> None:
    for number, place in enumerate(("99/1-1", "junk", "0/99999999999999999999-1", "0/1-1\n", b"\xff")):
        name = f"r{number}"
        redis_client.hset(KEYS.request(name), mapping={"status": "running", "epoch": 1, "claimed": place})
        redis_client.pexpire(KEYS.request(name), 60_000)
        enqueue(redis_client, name)
    enqueue(redis_client, "good")
    await serve_all(redis_client, redis_url)
    assert_served(redis_client, "good", 8)
