"""Metadata of bare queue entries: echoed by a real worker or refused by its field, with one ``done`` each."""

import math
from typing import Any

import msgpack
import pytest
import redis
from live_worker import MODEL, live_worker
from served_model import Reference
from waiting import eventually

from headrace.clients import AsyncClient, Done

pytestmark = pytest.mark.anyio
QUEUE = f"headrace:queue:{{{MODEL}}}:normal:0"
DEEPEST = 64


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


ECHOED: dict[str, Any] = {
    "null": None,
    "bytes": b"\x00\xff",
    "NUL and controls": {"a\0b": "\0\x1f\x7f"},
    "line separators": "\u2028\u2029\u0085",
    "beyond the basic plane": "\U0010ffff 🌊",
    "largest integers": [2**64 - 1, -(2**63)],
    "infinity": [math.inf, -math.inf],
    "deepest": nested(DEEPEST - 1),
    "almost too large": "m" * 16_000,
    "keys like fields": {"id": "other", "metadata": {"v": 2}, "__proto__": {}},
}
REFUSED: dict[str, bytes] = {
    "lone surrogate": msgpack.packb("a\ud800", unicode_errors="surrogatepass"),
    "lone surrogate in a key": msgpack.packb({"\udfff": 1}, unicode_errors="surrogatepass"),
    "extension type": msgpack.packb(msgpack.ExtType(5, b"abc")),
    "timestamp": msgpack.packb(msgpack.Timestamp(1, 2)),
    "number as a key": msgpack.packb({1: 2}),
    "list as a key": b"\x81\x91\x01\x02",
    "too deep": msgpack.packb(nested(DEEPEST + 10)),
    "far too deep": b"\x91" * 5000 + b"\xc0",
    "too large": msgpack.packb("m" * 20_000),
}


def entry(request_id: str, metadata: bytes) -> bytes:
    rest = msgpack.packb(
        {"v": 1, "id": request_id, "model": MODEL, "prompt": "The water", "max_tokens": 2, "ignore_eos": True}
    )
    return bytes([rest[0] + 1]) + rest[1:] + msgpack.packb("metadata") + metadata


async def test_each_is_echoed_or_refused_and_neighbours_go_on(
    redis_url: str, redis_client: redis.Redis, client: AsyncClient, reference: Reference
) -> None:
    bodies = {name: msgpack.packb(value) for name, value in ECHOED.items()} | REFUSED
    dones: dict[str, Done] = {}
    async with live_worker(redis_url, reference.folder):
        good = await client.submit("The water", max_tokens=40, ignore_eos=True)
        for number, metadata in enumerate(bodies.values()):
            redis_client.xadd(QUEUE, {"r": entry(f"r{number}", metadata)})
        for number, name in enumerate(bodies):
            async for event in client.attach(f"r{number}", wait=30):
                if isinstance(event, Done):
                    assert name not in dones
                    dones[name] = event
        assert len((await good.result()).tokens) == 40
        await eventually(lambda: redis_client.xlen(QUEUE) == 0)
    for name, value in ECHOED.items():
        assert (dones[name].finish_reason, dones[name].metadata) == ("length", value), name
    for name in REFUSED:
        error = dones[name].error
        assert error is not None, name
        assert error.code == "invalid_request", name
        assert len(error.message) < 300, name
        for word in ("codec", "byte 0x", "position"):
            assert word not in error.message, name
