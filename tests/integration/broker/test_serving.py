"""Requests served from the queue to the last event, by one worker and by several."""

import anyio
import msgpack
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
    text_of,
    until,
)

from headrace.clients.protocol import Delta, Done, decode_event, encode_request, make_request
from headrace.worker.broker import open_broker

pytestmark = pytest.mark.anyio


async def test_a_bare_entry_is_served_and_its_log_rewritten_as_one_delta(
    redis_url: str, redis_client: redis.Redis
) -> None:
    enqueue(redis_client, "a", max_tokens=9, metadata={"k": [1]})
    async with open_broker(settings(redis_url)) as broker, anyio.create_task_group() as tasks:
        tasks.start_soon(CountingWorker(broker).serve)
        await until(lambda: done_of(redis_client, "a") and queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    assert_served(redis_client, "a", 9)
    done = done_of(redis_client, "a")
    assert done is not None
    assert done.metadata == {"k": [1]}
    state = state_of(redis_client, "a")
    assert (state["status"], state["finish_reason"], state["model"]) == ("finished", "length", MODEL)
    assert (
        int(state["created"]) <= int(state["started"]) <= int(state["first_token"]) <= int(state["finished"])
    )
    for key in (KEYS.request("a"), KEYS.events("a")):
        assert 3590 <= redis_client.ttl(key) <= 3600


async def test_subscribers_get_every_token_once_and_then_the_end(
    redis_url: str, redis_client: redis.Redis
) -> None:
    with redis_client.pubsub(ignore_subscribe_messages=True) as channel:
        channel.subscribe(KEYS.channel("a"))
        channel.get_message(timeout=5)
        enqueue(redis_client, "a", max_tokens=30)
        async with open_broker(settings(redis_url)) as broker, anyio.create_task_group() as tasks:
            tasks.start_soon(CountingWorker(broker).serve)
            await until(lambda: done_of(redis_client, "a"))
            tasks.cancel_scope.cancel()
        tokens: list[int] = []
        text = ""
        while True:
            message = channel.get_message(timeout=5)
            assert message is not None
            event = decode_event(message["data"])
            if isinstance(event, Done):
                break
            assert isinstance(event, Delta)
            assert (event.seq, event.pos) == (len(tokens), len(text))
            tokens += event.tokens
            text += event.text
    assert tokens == list(range(30))
    assert text == text_of(30)
    assert event.seq == 30


async def test_an_idle_worker_wakes_at_once_for_every_queue(
    redis_url: str, redis_client: redis.Redis
) -> None:
    # It looks by itself only once in two minutes.
    quiet = settings(redis_url, lease=360, timeout=120)
    async with open_broker(quiet) as broker, anyio.create_task_group() as tasks:
        tasks.start_soon(CountingWorker(broker).serve)
        for number, (priority, lane) in enumerate([("low", 15), ("high", 0), ("normal", 7), ("low", 15)]):
            await asleep(redis_client)
            enqueue(redis_client, f"r{number}", priority=priority, lane=lane)
            await until(lambda n=number: done_of(redis_client, f"r{n}"))
        tasks.cancel_scope.cancel()


async def test_an_idle_worker_leaves_redis_alone(redis_url: str, redis_client: redis.Redis) -> None:
    quiet = settings(redis_url, lease=360, timeout=120)
    async with open_broker(quiet) as broker, anyio.create_task_group() as tasks:
        tasks.start_soon(CountingWorker(broker).serve)
        await asleep(redis_client)
        before = broker.counters.round_trips
        await until(lambda: any(blocked_for(client) >= 1 for client in redis_client.client_list()))
        assert broker.counters.round_trips == before
        tasks.cancel_scope.cancel()


def blocked_for(client: dict[str, str]) -> int:
    """Seconds since a blocked connection's last command, as the server counts them; 0 of any other."""
    return int(client["idle"]) if "b" in client["flags"] else 0


async def asleep(client: redis.Redis) -> None:
    """Wait until the one worker blocks on its queues."""
    await until(lambda: client.info("clients")["blocked_clients"] == 1)


async def test_two_workers_share_a_queue_and_neither_takes_more_than_it_has_room_for(
    redis_url: str, redis_client: redis.Redis
) -> None:
    names = [f"r{number}" for number in range(60)]
    for number, name in enumerate(names):
        enqueue(redis_client, name, lane=number % 16, max_tokens=3 + number % 5)
    async with (
        open_broker(settings(redis_url, "one", lease=60)) as one,
        open_broker(settings(redis_url, "two", lease=60)) as two,
        anyio.create_task_group() as tasks,
    ):
        workers = [
            CountingWorker(one, CountingEngine(capacity=3)),
            CountingWorker(two, CountingEngine(capacity=5)),
        ]
        for worker in workers:
            tasks.start_soon(worker.serve)
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    for number, name in enumerate(names):
        assert_served(redis_client, name, 3 + number % 5)
    served = [[claim.request.id for claim in worker.seen] for worker in workers]
    assert sorted(served[0] + served[1]) == sorted(names)
    assert all(served)
    assert workers[0].most_running <= 3
    assert workers[1].most_running <= 5


async def test_two_entries_of_one_id_are_one_request(redis_url: str, redis_client: redis.Redis) -> None:
    entry = enqueue(redis_client, "a", max_tokens=4)
    body = encode_request(make_request(id="a", model=MODEL, prompt="p", max_tokens=6))
    # In the same millisecond, entries of different queues have the same id.
    redis_client.xadd(KEYS.queue(MODEL, "normal", 3), {"r": body}, id=entry)
    async with open_broker(settings(redis_url)) as broker, anyio.create_task_group() as tasks:
        worker = CountingWorker(broker)
        tasks.start_soon(worker.serve)
        await until(lambda: queue_is_empty(redis_client))
        enqueue(redis_client, "a", max_tokens=5)  # and again after its end
        await until(lambda: broker.counters.duplicates == 2 and queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    assert len(worker.seen) == 1
    assert_served(redis_client, "a", worker.seen[0].request.max_tokens)


HOSTILE: dict[str, tuple[bytes, str | None]] = {
    "no msgpack": (b"\xc1", None),
    "text": (b"hello", None),
    "empty": (b"", None),
    "a list": (msgpack.packb([1, 2]) or b"", None),
    "no id": (msgpack.packb({"v": 1, "model": MODEL, "prompt": "x"}) or b"", None),
    "id escaping its key": (msgpack.packb({"id": "a}:{b", "model": MODEL, "prompt": "x"}) or b"", None),
    "no prompt": (msgpack.packb({"id": "h", "model": MODEL}) or b"", "prompt"),
    "other model": (msgpack.packb({"id": "h", "model": "other", "prompt": "x"}) or b"", "other"),
    "negative": (
        msgpack.packb({"id": "h", "model": MODEL, "prompt": "x", "max_tokens": -1}) or b"",
        "max_tokens",
    ),
    "nan": (msgpack.packb({"id": "h", "model": MODEL, "prompt": "x", "top_p": float("nan")}) or b"", "top_p"),
    "cut short": ((msgpack.packb({"id": "h", "model": MODEL, "prompt": "x" * 99}) or b"")[:-9], "request"),
    "nested": (b"\x82\xa2id\xa1h\xa1x" + b"\x91" * 100_000, "request"),
    "too large": (msgpack.packb({"id": "h", "model": MODEL, "prompt": "x" * (9 << 20)}) or b"", "bytes"),
}


@pytest.mark.parametrize("case", HOSTILE)
async def test_hostile_entries_are_answered_or_dead_lettered_and_others_served(
    redis_url: str, redis_client: redis.Redis, case: str
) -> None:
    body, complaint = HOSTILE[case]
    queue = KEYS.queue(MODEL, "normal", 0)
    enqueue(redis_client, "before")
    redis_client.xadd(queue, {"r": body})
    redis_client.xadd(queue, {"other": body[:10]})
    enqueue(redis_client, "after")
    async with open_broker(settings(redis_url)) as broker, anyio.create_task_group() as tasks:
        tasks.start_soon(CountingWorker(broker).serve)
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    assert_served(redis_client, "before", 8)
    assert_served(redis_client, "after", 8)
    letters = redis_client.xrange(KEYS.dead(MODEL))
    if complaint is None:
        assert len(letters) == 2
        assert letters[0][1][b"r"] == body
    else:
        assert len(letters) == 1
        done = done_of(redis_client, "h")
        assert done is not None
        assert done.error is not None
        assert complaint in done.error.message
        assert len(log_of(redis_client, "h")) == 1
    for _, fields in letters:
        assert fields[b"error"].startswith(b"invalid_request: ")
        assert fields[b"attempts"] == b"1"


async def test_a_hostile_entry_cannot_end_a_running_request_of_its_id(
    redis_url: str, redis_client: redis.Redis
) -> None:
    enqueue(redis_client, "a", max_tokens=12)
    async with open_broker(settings(redis_url)) as broker, anyio.create_task_group() as tasks:
        worker = CountingWorker(broker, CountingEngine(pause_at=5))
        tasks.start_soon(worker.serve)
        await until(lambda: state_of(redis_client, "a").get("seq") == "5")
        redis_client.xadd(
            KEYS.queue(MODEL, "high", 2), {"r": msgpack.packb({"id": "a", "model": MODEL}) or b""}
        )
        await until(lambda: broker.counters.duplicates == 1)
        worker.engine.pause_at = None
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    assert_served(redis_client, "a", 12)


async def test_a_key_of_the_wrong_type_ends_as_a_dead_letter(
    redis_url: str, redis_client: redis.Redis
) -> None:
    redis_client.set(KEYS.request("a"), "not a hash", ex=60)
    enqueue(redis_client, "a")
    enqueue(redis_client, "b")
    async with (
        open_broker(settings(redis_url, max_attempts=2, lease=0.3)) as broker,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(CountingWorker(broker).serve)
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    assert_served(redis_client, "b", 8)
    ((_, letter),) = redis_client.xrange(KEYS.dead(MODEL))
    assert b"WRONGTYPE" in letter[b"error"]
