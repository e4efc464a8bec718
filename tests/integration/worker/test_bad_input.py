"""Whatever is thrown at the queue: one clear answer each where an id can be read, and nobody else is hurt."""

import logging
from typing import Any

import anyio
import msgpack
import pytest
import redis
from live_worker import MODEL, live_worker
from served_model import Reference
from waiting import eventually

from headrace.clients import AsyncClient, Done

pytestmark = pytest.mark.anyio

QUEUE = f"headrace:queue:{{{MODEL}}}:normal:0"
BOMB = b"\x91" * 100_000 + b"\xc0"


def entry(**fields: Any) -> bytes:
    return msgpack.packb({"v": 1, "id": "x", "model": MODEL, "prompt": "The water"} | fields)


# What is sent, and what the error's message says of it.
READABLE: dict[str, tuple[bytes, str]] = {
    "no prompt": (
        msgpack.packb({"v": 1, "id": "x", "model": MODEL}),
        "exactly one of prompt, messages and tokens",
    ),
    "two prompts": (entry(tokens=[1, 2]), "exactly one of prompt, messages and tokens"),
    "prompt is a number": (entry(prompt=5), "prompt: "),
    "prompt is bytes": (entry(prompt=b"abc"), "prompt: "),
    "empty prompt": (entry(prompt=""), "prompt: "),
    "unknown model": (entry(model="gpt-17"), "model: must be the queue's 'tiny'"),
    "model is a list": (entry(model=["tiny"]), "model: "),
    "negative max_tokens": (entry(max_tokens=-5), "max_tokens: Input should be greater than or equal to 1"),
    "huge max_tokens": (entry(max_tokens=2**63), "max_tokens: Input should be less than or equal to"),
    "max_tokens is text": (entry(max_tokens="7"), "max_tokens: "),
    "NaN temperature": (entry(temperature=float("nan")), "temperature: "),
    "infinite temperature": (entry(temperature=float("inf")), "temperature: "),
    "negative temperature": (entry(temperature=-0.1), "temperature: "),
    "top_p of zero": (entry(top_p=0.0), "top_p: "),
    "huge seed": (entry(seed=2**64 - 1), "seed: "),
    "wrong priority": (entry(priority="urgent"), "priority: "),
    "too many stop strings": (entry(stop=["a"] * 99), "stop: "),
    "empty stop string": (entry(stop=[""]), "stop.0: "),
    "newer version": (entry(v=2), "v: "),
    "large metadata": (entry(metadata="m" * 20_000), "metadata: must be at most 16384 bytes"),
    "prompt longer than the model": (entry(prompt="water " * 3000), "prompt: must be"),
    "token prompt too long": (
        msgpack.packb({"id": "x", "model": MODEL, "tokens": [5] * 600}),
        "tokens: must be 1 to 63 tokens, got 600",
    ),
    "token id out of range": (
        msgpack.packb({"id": "x", "model": MODEL, "tokens": [5, 384]}),
        "tokens.1: must be from 0 and below 384, got 384",
    ),
    "negative token id": (msgpack.packb({"id": "x", "model": MODEL, "tokens": [-1]}), "tokens.0: "),
    "10 MB of prompt": (entry(prompt="water " * 1_700_000), "request: must be at most 8388608 bytes"),
    "5 MB of prompt": (entry(prompt="water " * 850_000), "prompt: must be at most 4194304 bytes"),
    "broken chat": (
        msgpack.packb({"id": "x", "model": MODEL, "messages": [{"role": 3}]}),
        "messages.0.role: ",
    ),
    "nested bomb after the id": (b"\x82\xa2id\xa1x\xa1z" + BOMB, "request: not msgpack"),
    "invalid UTF-8": (b"\x82\xa2id\xa1x\xa6prompt\xa2\xff\xff", "prompt: must be valid UTF-8"),
    "cut off": (entry()[:-3], "request: not msgpack"),
}
UNREADABLE: dict[str, bytes] = {
    "not msgpack": b"\xc1\xc1\xc1",
    "empty": b"",
    "a number": msgpack.packb(7),
    "a list": msgpack.packb(["x"]),
    "id with a colon": entry(id="a:b"),
    "id is a number": entry(id=5),
    "id too long": entry(id="x" * 129),
    "no id": msgpack.packb({"model": MODEL, "prompt": "x"}),
    "nested bomb before the id": b"\x82\xa1z" + BOMB + b"\xa2id\xa1x",
    "json": b'{"id": "x", "prompt": "y"}',
}


async def test_each_gets_one_clear_answer_and_the_batch_goes_on(
    redis_url: str, redis_client: redis.Redis, client: AsyncClient, reference: Reference
) -> None:
    settings = {"kv_cache_memory": "1MiB", "max_model_len": 64}
    async with live_worker(redis_url, reference.folder, **settings):
        good = await client.submit("The water", max_tokens=40, ignore_eos=True)
        for number, (body, _) in enumerate(READABLE.values()):
            redis_client.xadd(QUEUE, {"r": body.replace(b"\xa2id\xa1x", b"\xa2id\xa3r%02d" % number, 1)})
        redis_client.xadd(QUEUE, {"q": b"no field r"})
        answers: dict[str, Done] = {}
        for number, name in enumerate(READABLE):
            async for event in client.attach(f"r{number:02d}", wait=30):
                assert isinstance(event, Done), name
                answers[name] = event
        result = await good.result()
        after = await (await client.submit("The water", max_tokens=40, ignore_eos=True)).result()
        await eventually(lambda: redis_client.xlen(QUEUE) == 0)
    for name, (_, message) in READABLE.items():
        done = answers[name]
        assert done.finish_reason == "error", name
        assert done.error is not None
        assert message in done.error.message, name
        assert done.error.code == ("unknown_model" if name == "unknown model" else "invalid_request")
        assert len(done.error.message) < 300, name
    assert result.tokens == after.tokens
    assert len(result.tokens) == 40


async def test_what_has_no_id_is_logged_without_its_content_and_kept_as_a_dead_letter(
    redis_url: str,
    redis_client: redis.Redis,
    client: AsyncClient,
    reference: Reference,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, logger="headrace"):
        async with live_worker(redis_url, reference.folder):
            for body in UNREADABLE.values():
                redis_client.xadd(QUEUE, {"r": body})
            good = await (await client.submit("The water", max_tokens=4)).result()
            await eventually(lambda: redis_client.xlen(QUEUE) == 0)
    dead = [fields for _, fields in redis_client.xrange(f"headrace:dead:{{{MODEL}}}")]
    assert [fields[b"r"] for fields in dead] == [body[: 64 << 10] for body in UNREADABLE.values()]
    assert all(fields[b"error"] for fields in dead)
    assert good.tokens == reference.greedy("The water", 4)
    warnings = [record.getMessage() for record in caplog.records if "readable id" in record.getMessage()]
    assert len(warnings) == len(UNREADABLE)
    assert not any("The water" in message for message in warnings)


async def test_chat_without_a_template_is_refused_by_name(
    redis_url: str, client: AsyncClient, reference_without_chat: Reference
) -> None:
    async with live_worker(redis_url, reference_without_chat.folder):
        result = await (await client.submit(messages=[{"role": "user", "content": "hello"}])).result()
    assert result.finish_reason == "error"
    assert result.error is not None
    assert "messages: model tiny has no chat template" in result.error.message


async def test_a_flood_of_junk_does_not_keep_a_good_request_waiting_for_ever(
    redis_url: str, redis_client: redis.Redis, client: AsyncClient, reference: Reference
) -> None:
    pipeline = redis_client.pipeline(transaction=False)
    for number in range(500):
        pipeline.xadd(QUEUE, {"r": b"\xc1" * (number % 50)})
    pipeline.execute()
    async with live_worker(redis_url, reference.folder):
        with anyio.fail_after(60):
            result = await (await client.submit("The water", max_tokens=4)).result()
    assert result.finish_reason == "length"
