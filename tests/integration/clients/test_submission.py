"""Submitting: one entry per request, a bounded queue, and half-done submissions that heal."""

import zlib

import anyio
import pytest
import redis
from fake_worker import FakeWorker

from headrace.clients import AsyncClient, QueueFull, RequestError, Unavailable
from headrace.clients.protocol import Keys, decode_request, encode_request, make_request

pytestmark = pytest.mark.anyio
KEYS = Keys()


def queued(server: redis.Redis) -> list[str]:
    """Ids of all queued requests, by priority and lane."""
    entries = [entry for queue in KEYS.queues("m") for entry in server.xrange(queue)]
    return [decode_request(fields[b"r"]).id for _, fields in entries]


async def test_a_request_lands_on_the_stream_of_its_priority_and_tenant(
    client: AsyncClient, redis_client: redis.Redis
) -> None:
    handle = await client.submit("Hello", max_tokens=3, priority="high", tenant="acme", metadata={"a": [1]})
    ((_, fields),) = redis_client.xrange(KEYS.queue("m", "high", zlib.crc32(b"acme") % 16))
    request = decode_request(fields[b"r"])
    assert (request.id, request.prompt, request.max_tokens) == (handle.id, "Hello", 3)
    assert (request.model, request.tenant, request.metadata) == ("m", "acme", {"a": [1]})


async def test_its_state_says_queued_and_expires_within_a_day(
    client: AsyncClient, redis_client: redis.Redis
) -> None:
    handle = await client.submit("Hello")
    state = redis_client.hgetall(KEYS.request(handle.id))
    assert (state[b"status"], state[b"epoch"], state[b"model"]) == (b"queued", b"0", b"m")
    assert redis_client.xrange(KEYS.queue("m", "normal", 0))[0][0] == state[b"entry"]
    now = redis_client.time()[0] * 1000
    assert now - 60_000 < int(state[b"created"]) <= now + 1000
    assert 0 < redis_client.ttl(KEYS.request(handle.id)) <= 24 * 3600


async def test_the_same_id_twice_is_one_request(client: AsyncClient, redis_client: redis.Redis) -> None:
    async with anyio.create_task_group() as group:
        await client.submit("Hello", id="once")
        for _ in range(5):
            group.start_soon(lambda: client.submit("Hello", id="once"))
    assert queued(redis_client) == ["once"]


async def test_an_id_that_ran_already_is_not_enqueued_again(client: AsyncClient, worker: FakeWorker) -> None:
    await client.submit("Hello", id="once")
    worker.take()
    worker.emit("once", "Hi")
    worker.finish("once")
    handle = await client.submit("Hello", id="once")
    assert await handle.text() == "Hi"
    assert queued(worker.redis) == []


async def test_a_full_queue_says_how_full_and_leaves_nothing_behind(
    redis_url: str, redis_client: redis.Redis
) -> None:
    async with AsyncClient(redis_url, model="m", queue_limit=3) as client:
        for number in range(3):
            await client.submit("Hello", id=f"r{number}", tenant=f"tenant {number}", priority="low")
        with pytest.raises(QueueFull, match="3 requests") as caught:
            await client.submit("Hello", id="late")
        assert (caught.value.depth, caught.value.limit) == (3, 3)
        assert not redis_client.exists(KEYS.request("late"))
        await client.submit("Hello", id="r1")
    assert sorted(queued(redis_client)) == ["r0", "r1", "r2"]


async def test_other_models_do_not_count(redis_url: str) -> None:
    async with AsyncClient(redis_url, model="m", queue_limit=1) as client:
        await client.submit("Hello", model="other")
        await client.submit("Hello")
        with pytest.raises(QueueFull):
            await client.submit("Hello")


async def test_a_refused_request_that_someone_cancelled_keeps_its_state(
    redis_url: str, redis_client: redis.Redis
) -> None:
    async with AsyncClient(redis_url, model="m", queue_limit=0) as client:
        redis_client.hset(KEYS.request("r"), mapping={"status": "queued", "epoch": 0, "cancel": 1})
        redis_client.expire(KEYS.request("r"), 60)
        with pytest.raises(QueueFull):
            await client.submit("Hello", id="r")
        assert redis_client.exists(KEYS.request("r"))


async def test_a_submission_cut_before_its_entry_is_completed_by_the_next(
    client: AsyncClient, redis_client: redis.Redis
) -> None:
    await client.submit("Hello", id="r")
    redis_client.hdel(KEYS.request("r"), "entry")
    redis_client.delete(KEYS.queue("m", "normal", 0))
    await client.submit("Hello", id="r")
    assert queued(redis_client) == ["r"]
    assert redis_client.hexists(KEYS.request("r"), "entry")


async def test_a_wrong_request_is_refused_before_redis_hears_of_it(
    client: AsyncClient, redis_client: redis.Redis
) -> None:
    with pytest.raises(RequestError, match=r"max_tokens: .* 1, got 0"):
        await client.submit("Hello", max_tokens=0)
    with pytest.raises(RequestError, match="exactly one of"):
        await client.submit()
    with pytest.raises(RequestError, match="id: must be"):
        await client.submit("Hello", id="a}b")
    assert redis_client.dbsize() == 0


async def test_without_any_model_the_request_is_wrong(redis_url: str) -> None:
    async with AsyncClient(redis_url) as client:
        with pytest.raises(RequestError, match="model"):
            await client.submit("Hello")


async def test_scripts_are_sent_again_to_a_server_that_forgot_them(
    client: AsyncClient, redis_client: redis.Redis
) -> None:
    await client.submit("Hello", id="a")
    redis_client.script_flush()
    await client.submit("Hello", id="b")
    assert queued(redis_client) == ["a", "b"]


async def test_a_bare_entry_from_any_language_is_a_submission(
    client: AsyncClient, worker: FakeWorker
) -> None:
    body = encode_request(make_request(id="bare", model="m", prompt="Hello"))
    worker.redis.xadd(KEYS.queue("m", "normal", 0), {"r": body})
    handle = client.attach("bare", wait=30)
    async with anyio.create_task_group() as group:
        texts: list[str] = []

        async def read() -> None:
            texts.append(await handle.text())

        group.start_soon(read)
        await anyio.to_thread.run_sync(worker.take)
        worker.emit("bare", "Hi")
        worker.finish("bare")
    assert texts == ["Hi"]


async def test_an_unreachable_server_is_named_after_the_patience() -> None:
    async with AsyncClient("redis://127.0.0.1:1/0", model="m", patience=0.3) as client:
        with pytest.raises(Unavailable, match="cannot be reached"):
            await client.submit("Hello")


async def test_a_refusal_is_not_retried(redis_url: str, redis_client: redis.Redis) -> None:
    redis_client.acl_setuser("nobody", enabled=True, passwords=["+secret"], commands=["-@all"], reset=True)
    url = redis_url.replace("//", "//nobody:secret@")
    async with AsyncClient(url, model="m", patience=3600) as client:
        with pytest.raises(Unavailable, match="refuses"):
            await client.submit("Hello")
    async with AsyncClient(url.replace("secret", "wrong"), model="m", patience=3600) as client:
        with pytest.raises(Unavailable, match="refuses"):
            await client.submit("Hello")
    redis_client.acl_deluser("nobody")


async def test_on_one_server_nothing_comes_between_a_request_and_its_entry(
    client: AsyncClient, redis_client: redis.Redis
) -> None:
    """A server that loses its last writes then has all of a submission, or nothing."""
    with redis_client.monitor() as monitor:
        await client.submit("Hello", id="r")
        redis_client.echo("end")
        scripts: list[str] = []
        while not (command := monitor.next_command())["command"].startswith("ECHO"):
            name = command["command"].split()[0]
            if command["client_type"] != "lua" and name.startswith("EVAL"):
                scripts.append(name)
    assert scripts in (["EVALSHA"], ["EVALSHA", "EVAL"])
    assert redis_client.hexists(KEYS.request("r"), "entry")
    assert queued(redis_client) == ["r"]
