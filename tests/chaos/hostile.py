"""Queue entries that no honest client would write."""

import random
from typing import Any

import msgpack

_VALUES: list[Any] = [
    None, True, -1, 0, 1 << 63, -(1 << 63), 1e308, float("nan"), float("inf"), "", "x", "{}", "a}:{b",
    "../../etc", "\u0000", b"\xff\xfe", [], [None], {}, {"": {}}, "x" * 5000, [1] * 300, "\U0001f4a9" * 300,
]  # fmt: skip
_FIELDS = [
    "v", "id", "model", "prompt", "messages", "tokens", "max_tokens", "temperature", "top_p", "top_k",
    "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed", "stop", "stop_tokens",
    "logprobs", "ignore_eos", "priority", "deadline", "tenant", "metadata", "trace", "unknown", "",
]  # fmt: skip


def hostile_entry(dice: random.Random, number: int, model: str) -> dict[bytes, bytes]:
    """One entry's fields: often nearly a request, sometimes a request after all."""
    way = dice.randrange(7)
    if way == 0:
        return {b"r": dice.randbytes(dice.randrange(200))}
    if way == 1:
        return {dice.randbytes(dice.randrange(5)): dice.randbytes(dice.randrange(50)) for _ in range(3)}
    body = _request(number, model)
    if way == 2:
        for _ in range(dice.randint(1, 3)):
            body[dice.choice(_FIELDS)] = dice.choice(_VALUES)
    elif way == 3:
        for _ in range(dice.randint(1, 3)):
            body.pop(dice.choice(list(body)), None)
        body["max_tokens"] = 1  # without it the entry is valid, and takes long
    data = _packed(body)
    if way == 4:
        data = data[: dice.randrange(len(data))]
    elif way == 5:
        damaged = bytearray(data)
        for _ in range(dice.randint(1, 4)):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        data = bytes(damaged)
    elif way == 6:
        opening = dice.choice([b"\x91", b"\x81\xa1a", b"\x81"])
        data = b"\x82\xa2id" + _packed(f"hostile-{number}") + b"\xa1x" + opening * dice.randrange(1, 3000)
    return {b"r": data}


def _request(number: int, model: str) -> dict[str, Any]:
    return {"v": 1, "id": f"hostile-{number}", "model": model, "prompt": "abc", "max_tokens": 1}


def _packed(value: Any) -> bytes:
    data = msgpack.packb(value)
    assert isinstance(data, bytes)
    return data
