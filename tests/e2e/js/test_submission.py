"""Submitting from JavaScript: once, bounded, checked; and cancelling."""

import math
import zlib

import anyio
import msgpack
import pytest
from fake_worker import FakeWorker, serve
from gateway_server import answer
from js_client import JsClient, JsError, JsProcess
from js_reader import JsReader
from redis_servers import RedisServer
from waiting import eventually

from headrace.clients import AsyncClient
from headrace.clients.protocol import Keys, decode_request

pytestmark = pytest.mark.anyio


def entries(worker: FakeWorker) -> dict[str, int]:
    lengths = {queue: worker.redis.xlen(queue) for queue in worker.keys.queues(worker.model)}
    return {queue: length for queue, length in lengths.items() if length}


async def test_every_field_arrives_on_the_right_queue(client: JsClient, worker: FakeWorker) -> None:
    fields = {
        "id": "order-1",
        "messages": [{"role": "user", "content": "水 😀", "name": "x"}, {"role": "assistant"}],
        "max_tokens": 7,
        "temperature": 1,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.25,
        "repetition_penalty": 1.5,
        "presence_penalty": -1,
        "frequency_penalty": 2,
        "seed": {"$": "bigint", "is": str(-(1 << 63))},
        "stop": ["\n", "😀"],
        "stop_tokens": [5],
        "ignore_eos": True,
        "logprobs": 3,
        "priority": "high",
        "deadline": 1_900_000_000_000,
        "tenant": "größe",
        "metadata": {"n": 1_900_000_000_000, "x": [1.5, None]},
        "trace": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    await client.submit(**fields)
    lane = zlib.crc32("größe".encode()) % 16
    assert entries(worker) == {worker.keys.queue("m", "high", lane): 1}
    (_, entry), *_ = worker.redis.xrange(worker.keys.queue("m", "high", lane))
    request = decode_request(entry[b"r"])
    expected = {**fields, "model": "m", "v": 1, "seed": -(1 << 63)}
    assert request.model_dump(exclude_unset=True) == expected
    assert isinstance(request.metadata["n"], int)


async def test_the_same_id_again_is_the_same_request(
    client: JsClient, redis_url: str, worker: FakeWorker
) -> None:
    first = await client.submit(prompt="Hello", id="once")
    again = await client.submit(prompt="Something else", id="once", priority="high")
    async with AsyncClient(redis_url, model="m") as python:
        await python.submit("Hello", id="once")
        await python.submit("Hello", id="other")
    await client.submit(prompt="Hello", id="other")
    assert entries(worker) == {worker.keys.queue("m", "normal", 0): 2}
    assert worker.take().prompt == "Hello"
    worker.emit("once", "Hi")
    worker.finish("once")
    assert await first.text() == await again.text() == "Hi"
    await client.submit(prompt="Hello", id="once")
    assert worker.take().id == "other"
    assert entries(worker) == {}


async def test_what_python_submits_javascript_attaches_to_and_the_other_way_round(
    client: JsClient, redis_url: str, worker: FakeWorker
) -> None:
    stop = serve(worker, answer)
    try:
        async with AsyncClient(redis_url, model="m") as python:
            there = await python.submit("eins zwei drei", metadata=[1])
            here = await client.submit(prompt="un deux trois", metadata={"a": None})
            result = await (await client.attach(there.id)).result()
            other = await python.attach(here.id).result()
            assert result["text"] == (await there.text()) == "eins zwei drei "
            assert other.text == await here.text() == "un deux trois "
            assert (result["metadata"], other.metadata) == ([1], {"a": None})
            assert (await here.status())["attempts"] == (await python.attach(here.id).status()).attempts == 1
    finally:
        stop()


async def test_a_full_queue_takes_nothing_and_says_so(
    node: JsProcess, redis_url: str, worker: FakeWorker
) -> None:
    client = await node.open(redis_url, model="m", queueLimit=2)
    await client.submit(prompt="Hello", tenant="a")
    await client.submit(prompt="Hello", priority="low")
    with pytest.raises(JsError) as caught:
        await client.submit(prompt="Hello", id="third")
    assert caught.value.name == "QueueFull"
    assert (caught.value.fields["depth"], caught.value.fields["limit"]) == (2, 2)
    with pytest.raises(JsError, match="unknown"):
        await (await client.attach("third")).status()
    worker.take()
    await client.submit(prompt="Hello", id="third")
    unlimited = await node.open(redis_url, model="m", queueLimit=None)
    await unlimited.submit(prompt="Hello")
    for one in (client, unlimited):
        await one.close()


async def test_several_are_submitted_all_or_none(node: JsProcess, redis_url: str, worker: FakeWorker) -> None:
    client = await node.open(redis_url, model="m", queueLimit=3)
    requests = [{"prompt": "Hello", "id": f"r{number}"} for number in range(3)]
    with pytest.raises(JsError, match="max_tokens: must be from 1") as caught:
        await client.submit_all([*requests, {"prompt": "Hello"}, {"prompt": "Hello", "max_tokens": 0}])
    assert caught.value.name == "RequestError"
    with pytest.raises(JsError, match="4 more do not fit") as caught:
        await client.submit_all([*requests, {"prompt": "Hello"}])
    assert (caught.value.name, caught.value.fields["wanted"]) == ("QueueFull", 4)
    with pytest.raises(JsError, match="must be of 1 model, got 2"):
        await client.submit_all([*requests, {"prompt": "Hello", "model": "other"}])
    with pytest.raises(JsError, match="must be of 1 model, got 0"):
        await client.submit_all([])
    assert worker.redis.dbsize() == 0
    handles = await client.submit_all(requests)
    assert [handle.id for handle in await client.submit_all(requests)] == ["r0", "r1", "r2"]
    assert [handle.id for handle in handles] == ["r0", "r1", "r2"]
    assert entries(worker) == {worker.keys.queue("m", "normal", 0): 3}
    await client.close()


async def test_a_full_server_is_an_error_of_its_own_and_unavailable(
    client: JsClient, worker: FakeWorker
) -> None:
    worker.redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(JsError, match="Redis is full: OOM") as caught:
            await client.submit(prompt="Hello")
    finally:
        worker.redis.config_set("maxmemory", 0)
    assert (caught.value.name, caught.value.fields["unavailable"]) == ("ServerFull", True)


async def test_cancelling(client: JsClient, worker: FakeWorker) -> None:
    notices = worker.redis.pubsub()
    notices.subscribe(worker.keys.control("m"))
    handle = await client.submit(prompt="Hello")
    worker.take()
    worker.emit(handle.id, "Hal")
    reader = JsReader(handle.events())
    async with anyio.create_task_group() as group:
        group.start_soon(reader.run)
        assert await (await client.attach(handle.id)).cancel()
        assert worker.cancelled(handle.id)
        assert (await handle.status())["cancelled"]
        worker.finish(handle.id, "cancelled")
    assert [end["finish_reason"] for end in reader.ends] == ["cancelled"]
    assert not await handle.cancel()
    while (message := notices.get_message(timeout=10)) and message["type"] != "message":
        pass
    assert message is not None
    assert message["data"] == b"\x81\xa6cancel\xd9 " + handle.id.encode()
    notices.close()


def big(value: int) -> dict[str, str]:
    return {"$": "bigint", "is": str(value)}


def js_number(name: str) -> dict[str, str]:
    """What JSON has no form for."""
    return {"$": "number", "is": name}


def nested(depth: int) -> list[object]:
    """So many lists in one another."""
    value: list[object] = []
    for _ in range(depth - 1):
        value = [value]
    return value


async def test_metadata_at_its_limits_arrives(client: JsClient, worker: FakeWorker) -> None:
    edges = [nested(63), big((1 << 64) - 1), big(-(1 << 63)), js_number("NaN"), js_number("-Infinity")]
    await client.submit(prompt="a", metadata=edges)
    depth, most, least, nan, infinity = worker.take().metadata
    assert (depth, most, least, str(nan)) == (nested(63), (1 << 64) - 1, -(1 << 63), "nan")
    assert infinity == -math.inf


@pytest.mark.parametrize(
    ("fields", "field", "problem"),
    [
        ({}, "request", "exactly one of prompt, messages and tokens is needed, got none"),
        ({"prompt": "a", "tokens": [1]}, "request", "got prompt, tokens"),
        ({"prompt": ""}, "prompt", "must not be empty"),
        ({"prompt": "é" * (1 << 21) + "x"}, "prompt", "at most 4194304 bytes of UTF-8, got 4194305"),
        ({"prompt": "\ud800"}, "prompt", "lone surrogates"),
        ({"prompt": "a", "id": "a b"}, "id", "1 to 128 of the characters"),
        ({"prompt": "a", "model": "m}"}, "model", "1 to 200 of the characters"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens", "from 1 to 1048576, got 0"),
        ({"prompt": "a", "max_tokens": 1.5}, "max_tokens", "whole number"),
        ({"prompt": "a", "max_tokens": "9"}, "max_tokens", "whole number, got string"),
        ({"prompt": "a", "temperature": 101}, "temperature", "from 0 to 100, got 101"),
        ({"prompt": "a", "top_p": 0}, "top_p", "above 0 and at most 1"),
        ({"prompt": "a", "seed": {"$": "bigint", "is": str(1 << 63)}}, "seed", "must be from"),
        ({"prompt": "a", "stop": ["x"] * 17}, "stop", "0 to 16 items, got 17"),
        ({"prompt": "a", "stop": ["😀" * 257]}, "stop.0", "1 to 256 characters, got 257"),
        ({"prompt": "a", "priority": "urgent"}, "priority", "one of high, normal, low"),
        ({"prompt": "a", "tenant": ""}, "tenant", "1 to 256 characters"),
        ({"prompt": "a", "metadata": "x" * 20000}, "metadata", "at most 16384 bytes of msgpack"),
        ({"prompt": "a", "id": "\ud800"}, "id", "lone surrogates"),
        ({"prompt": "a", "model": "m\udfff"}, "model", "lone surrogates"),
        ({"messages": [{"role": "\ud800"}]}, "messages.0.role", "lone surrogates"),
        ({"messages": [{"role": "u", "content": "\ud800"}]}, "messages.0.content", "lone surrogates"),
        ({"messages": [{"role": "u", "x": ["\ud800"]}]}, "messages.0.x.0", "lone surrogates"),
        ({"prompt": "a", "stop": ["x", "\ud800"]}, "stop.1", "lone surrogates"),
        ({"prompt": "a", "tenant": "\ud800"}, "tenant", "lone surrogates"),
        ({"prompt": "a", "trace": "\ud800"}, "trace", "lone surrogates"),
        ({"prompt": "a", "metadata": {"a": [0, "\ud800"]}}, "metadata.a.1", "valid Unicode, without lone"),
        ({"prompt": "a", "metadata": {"a": {"\ud800": 1}}}, "metadata.a", "names of valid Unicode, without"),
        ({"prompt": "a", "metadata": {"a": big(1 << 64)}}, "metadata.a", "an integer of at most 64 bits"),
        ({"prompt": "a", "metadata": [big(-(1 << 63) - 1)]}, "metadata.0", "an integer of at most 64 bits"),
        ({"prompt": "a", "metadata": nested(65)}, "metadata", "must be nested at most 64 deep"),
        ({"prompt": "a", "temperature": js_number("NaN")}, "temperature", "must be a number, got NaN"),
        ({"prompt": "a", "top_p": js_number("Infinity")}, "top_p", "at most 1, got Infinity"),
        ({"prompt": "a", "max_tokens": js_number("-Infinity")}, "max_tokens", "whole number.*got -Infinity"),
        ({"tokens": [js_number("NaN")]}, "tokens.0", "whole number.*got NaN"),
        ({"prompt": "a", "maxTokens": 5}, "maxTokens", "is not a field"),
        ({"tokens": [1, -1]}, "tokens.1", "from 0 to 2147483647, got -1"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "must be a string"),
    ],
)
async def test_a_bad_field_is_named_with_its_limit_and_reaches_nobody(
    client: JsClient, worker: FakeWorker, fields: dict, field: str, problem: str
) -> None:
    with pytest.raises(JsError, match=problem) as caught:
        await client.submit(**fields)
    assert (caught.value.name, caught.value.fields["field"]) == ("RequestError", field)
    assert worker.redis.dbsize() == 0


@pytest.mark.parametrize(
    ("url", "options", "problem"),
    [
        ("http://localhost", {}, "scheme must be one of redis"),
        ("redis+sentinel://localhost/mymaster", {}, "scheme must be one of redis"),
        ("redis://localhost/zero", {}, "database must be a number"),
        ("redis://local host", {}, "not HOST or HOST:PORT"),
        ("redis://localhost?timeout=5", {}, "no URL option timeout"),
        ("redis+cluster://a,b/1", {}, "no databases"),
        ("redis://localhost", {"namespace": "{x}"}, "namespace: must match"),
        ("redis://localhost", {"timeout": 0}, "timeout: must be a number of at least 1"),
        ("redis://localhost", {"queueLimit": -1}, "queueLimit: must be a number of at least 0"),
    ],
)
async def test_what_cannot_be_connected_to_is_refused(
    node: JsProcess, url: str, options: dict, problem: str
) -> None:
    with pytest.raises(JsError, match=problem):
        await node.open(url, **options)


async def test_an_id_that_could_leave_its_key_is_refused(client: JsClient) -> None:
    with pytest.raises(JsError, match="id: must match"):
        await client.attach("a}b")


async def test_keys_are_those_of_every_participant(client: JsClient, redis_server: RedisServer) -> None:
    """Under a namespace and a model name with every character that they may have."""
    other = await client.process.open(redis_server.url, model="org/Model.7B:x@y+z-1", namespace="a.b:c")
    await other.submit(prompt="Hello", id="x", tenant="t")
    keys = Keys("a.b:c")
    lane = zlib.crc32(b"t") % 16
    with redis_server.connect() as connection:
        expected = {keys.request("x"), keys.queue("org/Model.7B:x@y+z-1", "normal", lane)}
        assert {name.decode() for name in connection.scan_iter()} == expected
    await other.close()


async def test_submitting_again_puts_back_what_somebody_trimmed(client: JsClient, worker: FakeWorker) -> None:
    await client.submit(prompt="Hello", id="a")
    queue = worker.keys.queue("m", "normal", 0)
    worker.redis.xtrim(queue, maxlen=0, approximate=False)
    handle = await client.submit(prompt="Hello", id="a")
    assert entries(worker) == {}  # it may be on its way to a worker
    worker.redis.hset(worker.keys.request("a"), "entry", "1-1")
    await client.submit(prompt="Hello", id="a")
    await client.submit(prompt="Hello", id="a")
    assert entries(worker) == {queue: 1}
    assert worker.take().id == "a"
    worker.finish("a")
    assert (await handle.result())["finish_reason"] == "stop"


async def test_whoever_follows_what_has_no_entry_is_told_and_asks_workers_before(
    client: JsClient, worker: FakeWorker
) -> None:
    """With the client's real times: it asks after half a minute of silence at most."""
    handle = await client.submit(prompt="Hello", id="a")
    control = worker.redis.pubsub(ignore_subscribe_messages=True)
    control.subscribe(worker.keys.control("m"))
    control.get_message(timeout=20)

    async def asked() -> bool:
        message = control.get_message()
        return message is not None and msgpack.unpackb(message["data"]) == {"missing": "a"}

    async with anyio.create_task_group() as group:

        async def follow() -> None:
            with pytest.raises(JsError) as caught:
                await handle.result()
            assert caught.value.name == "UnknownRequest"

        group.start_soon(follow)
        await eventually(asked, 50)
        worker.redis.hset(worker.keys.request("a"), "entry", "")
    control.close()
