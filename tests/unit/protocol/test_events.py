"""Events: their bytes, and what is made of bytes that are none."""

import contextlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.clients.protocol import (
    Delta,
    Done,
    ErrorInfo,
    Event,
    EventError,
    Usage,
    decode_event,
    encode_event,
)

COUNT = st.integers(0, 1 << 40)
TOKEN = st.integers(0, (1 << 31) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
LOGPROBS = st.tuples(
    st.floats(max_value=0, allow_nan=False), st.lists(st.tuples(TOKEN, st.floats(max_value=0)), max_size=3)
)
EVENTS = st.builds(
    Delta, COUNT, COUNT, COUNT, st.lists(TOKEN), TEXT, st.none() | st.lists(LOGPROBS, max_size=3)
) | st.builds(
    Done,
    COUNT,
    COUNT,
    st.sampled_from(["stop", "length", "cancelled", "expired", "error"]),
    st.builds(Usage, COUNT, COUNT, COUNT),
    st.none() | st.dictionaries(TEXT, st.lists(st.integers(0, 9), max_size=2), max_size=2),
    st.none() | st.builds(ErrorInfo, TEXT, TEXT),
)


@given(EVENTS)
def test_an_event_survives_its_bytes(event: Event) -> None:
    assert decode_event(encode_event(event)) == event


def test_a_delta_is_the_contracts() -> None:
    data = encode_event(Delta(seq=3, pos=5, epoch=2, tokens=[7], text=" x", logprobs=[(-0.5, [(7, -0.5)])]))
    assert msgpack.unpackb(data) == {
        "v": 1, "type": "delta", "seq": 3, "pos": 5, "epoch": 2, "tokens": [7], "text": " x",
        "logprobs": [[-0.5, [[7, -0.5]]]],
    }  # fmt: skip


def test_a_done_is_the_contracts() -> None:
    done = Done(4, 2, "error", Usage(1, 4, 0), {"a": 1}, ErrorInfo("code", "message"))
    assert msgpack.unpackb(encode_event(done)) == {
        "v": 1, "type": "done", "seq": 4, "epoch": 2, "finish_reason": "error",
        "usage": {"prompt_tokens": 1, "completion_tokens": 4, "cached_tokens": 0},
        "metadata": {"a": 1}, "error": {"code": "code", "message": "message"},
    }  # fmt: skip


def test_what_a_later_version_adds_is_passed_over() -> None:
    assert decode_event(msgpack.packb({"v": 1, "type": "progress", "share": 0.5})) is None
    delta = {"type": "delta", "seq": 0, "pos": 0, "epoch": 1, "tokens": [1], "text": "", "mood": 1}
    assert decode_event(msgpack.packb(delta)) == Delta(0, 0, 1, [1], "")
    done = {"type": "done", "seq": 0, "epoch": 1, "finish_reason": "stop", "usage": {"joules": 3}}
    assert decode_event(msgpack.packb(done)) == Done(0, 1, "stop", Usage())


@pytest.mark.parametrize(
    "change",
    [
        {"seq": -1}, {"seq": "0"}, {"seq": None}, {"pos": 0.5}, {"tokens": "abc"}, {"tokens": None},
        {"tokens": [None]}, {"text": b"abc"}, {"logprobs": [1]}, {"logprobs": [[-1.0, [[1]]]]},
        {"type": "done"}, {"type": "done", "finish_reason": "bored", "usage": {}},
        {"type": "done", "finish_reason": "stop", "usage": []},
        {"type": "done", "finish_reason": "error", "usage": {}, "error": "broken"},
    ],
    ids=str,
)  # fmt: skip
def test_an_event_that_is_wrong_is_an_error(change: dict[str, object]) -> None:
    delta = {"type": "delta", "seq": 0, "pos": 0, "epoch": 1, "tokens": [1], "text": "a"}
    with pytest.raises(EventError):
        decode_event(msgpack.packb({**delta, **change}))


@given(st.binary(max_size=100))
def test_any_bytes_are_an_event_or_an_event_error(data: bytes) -> None:
    with contextlib.suppress(EventError):
        decode_event(data)
