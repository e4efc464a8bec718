"""Requests: what is accepted, what is refused with which words, and that bytes carry it all."""

import contextlib

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.clients.protocol import Message, RequestError, decode_request, encode_request, make_request

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def nested(depth: int) -> list[object]:
    """Lists in one another."""
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens": st.integers(1, 1 << 20),
        "temperature": st.floats(0, 100),
        "top_p": st.floats(0, 1, exclude_min=True),
        "top_k": st.integers(0, 1 << 31),
        "min_p": st.floats(0, 1),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "stop": st.lists(TEXT.filter(bool), max_size=16),
        "stop_tokens": st.lists(st.integers(0, (1 << 31) - 1), max_size=5),
        "ignore_eos": st.booleans(),
        "logprobs": st.integers(0, 20),
        "priority": st.sampled_from(["high", "normal", "low"]),
        "deadline": st.integers(0, 2**63 - 1),
        "tenant": TEXT.filter(bool),
        "metadata": PLAIN,
        "trace": TEXT,
    },
)
MESSAGE = st.fixed_dictionaries({"role": TEXT.filter(bool), "content": TEXT})
PROMPT = (
    st.fixed_dictionaries({"prompt": TEXT.filter(bool)})
    | st.fixed_dictionaries({"tokens": st.lists(st.integers(0, (1 << 31) - 1), min_size=1, max_size=9)})
    | st.fixed_dictionaries(
        {
            "messages": st.lists(
                st.fixed_dictionaries({"role": TEXT.filter(bool), "content": TEXT}), min_size=1
            )
        }
    )
)


@settings(deadline=None)
@given(fields=FIELDS, prompt=PROMPT)
def test_a_request_survives_its_bytes(fields: dict[str, object], prompt: dict[str, object]) -> None:
    request = make_request(id="r", model="m", **prompt, **fields)
    assert decode_request(encode_request(request)) == request


def test_defaults_are_not_sent() -> None:
    data = encode_request(make_request(id="r", model="m", prompt="Hello", max_tokens=256, stop=[]))
    assert msgpack.unpackb(data) == {"v": 1, "id": "r", "model": "m", "prompt": "Hello"}


def test_unknown_fields_are_ignored() -> None:
    body = {"v": 1, "id": "r", "model": "m", "prompt": "Hello", "mood": {"good": True}, 7: b"x"}
    packed = msgpack.packb({name: value for name, value in body.items() if name != 7})
    assert decode_request(packed).prompt == "Hello"


def test_fields_of_messages_are_kept_for_the_chat_template() -> None:
    message = {"role": "tool", "content": "4", "tool_call_id": "x"}
    request = make_request(id="r", model="m", messages=[message])
    assert decode_request(encode_request(request)).messages == [Message.model_validate(message)]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "request: exactly one of prompt, messages and tokens is needed, got none"),
        (
            {"prompt": "a", "tokens": [1]},
            "request: exactly one of .* \\['prompt', 'tokens'\\]",
        ),
        ({"prompt": ""}, "prompt: .* at least 1 character"),
        ({"prompt": 3}, "prompt: .* valid string, got 3"),
        ({"prompt": "x" * ((4 << 20) + 1)}, "prompt: must be at most 4194304 bytes of UTF-8, got 4194305"),
        ({"tokens": []}, "tokens: .* at least 1 item"),
        ({"tokens": [-1]}, "tokens.0: .* greater than or equal to 0, got -1"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens: .* greater than or equal to 1, got 0"),
        ({"prompt": "a", "max_tokens": 1 << 60}, "max_tokens: .* less than or equal to 1048576"),
        ({"prompt": "a", "max_tokens": "3"}, "max_tokens: .* valid integer, got str"),
        ({"prompt": "a", "temperature": float("nan")}, "temperature: .* finite number, got nan"),
        ({"prompt": "a", "temperature": -0.1}, "temperature: .* greater than or equal to 0, got -0.1"),
        ({"prompt": "a", "top_p": 0.0}, "top_p: .* greater than 0"),
        ({"prompt": "a", "stop": "x"}, "stop: .* valid list, got str"),
        ({"prompt": "a", "stop": [""]}, "stop.0: .* at least 1 character"),
        ({"prompt": "a", "priority": "urgent"}, "priority: .* 'high', 'normal' or 'low'"),
        ({"prompt": "a", "seed": 1 << 63}, "seed: "),
        ({"prompt": "a", "metadata": "x" * (1 << 14)}, "metadata: must be at most 16384 bytes"),
        ({"prompt": "a", "metadata": object()}, "metadata: must be plain data"),
        ({"prompt": "a", "metadata": {1: 2}}, "metadata: must have names that are text"),
        ({"prompt": "a", "metadata": "\ud800"}, "metadata: must be valid Unicode"),
        ({"prompt": "a", "id": "a b"}, "id: must be 1 to 128 of the characters"),
        ({"prompt": "a", "model": "a}"}, "model: must be 1 to 200 of the characters"),
        ({"prompt": "a", "v": 2}, "v: .* less than or equal to 1, got 2"),
    ],
)
def test_what_is_wrong_is_named_with_its_limit(fields: dict[str, object], problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        make_request(**{"id": "r", "model": "m", **fields})


def test_what_the_other_side_could_not_read_is_not_sent() -> None:
    request = make_request(id="r", model="m", messages=[{"role": "user", "x": {1: 2}}])
    with pytest.raises(RequestError, match=r"messages\.0\.x: must have names that are text"):
        encode_request(request)


def test_a_request_that_is_too_large_is_refused_on_both_sides() -> None:
    tokens = [1 << 30] * (1 << 20)
    request = make_request(id="r", model="m", tokens=tokens, stop=["x" * 256] * 16)
    messages = [{"role": "user", "content": "x" * (1 << 20)}] * 9
    assert len(encode_request(request)) < 8 << 20
    with pytest.raises(RequestError, match="request: must be at most 8388608 bytes"):
        encode_request(make_request(id="r", model="m", messages=messages))
    with pytest.raises(RequestError, match="request: must be at most 8388608 bytes") as caught:
        decode_request(msgpack.packb({"id": "r", "prompt": "x" * (9 << 20)}))
    assert caught.value.request_id == "r"


@pytest.mark.parametrize(
    ("data", "request_id"),
    [
        (b"", None),
        (b"\xc1", None),
        (b"\x91" * 5000, None),
        (b"\x81" * 5000, None),
        (msgpack.packb([1]), None),
        (msgpack.packb({"id": "r"}), "r"),
        (msgpack.packb({"id": "a}b", "model": "m", "prompt": "x"}), None),
        (msgpack.packb({"id": 7, "model": "m", "prompt": "x"}), None),
        (msgpack.packb({"v": 1, "id": "r", "model": "m", "prompt": [1]}), "r"),
        (msgpack.packb({"v": 1, "id": "r", "model": "m", "prompt": "abc"})[:-2], "r"),
        (b"\x83\xa6prompt\xa2\xff\xfe\xa2id\xa1r\xa5model\xa1m", "r"),
        (b"\x82\xa2id\xa1r\xa8metadata" + b"\x91" * 5000 + b"\x01", "r"),
    ],
)
def test_bad_bytes_are_refused_and_the_id_is_saved(data: bytes, request_id: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        decode_request(data)
    assert caught.value.request_id == request_id


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_a_request_error(data: bytes) -> None:
    with contextlib.suppress(RequestError):
        decode_request(data)


def test_errors_do_not_repeat_what_the_user_wrote() -> None:
    for data in (
        b"\x83\xa2id\xa1r\xa5model\xa1m\xa6prompt\xa8secret\xff\xfe",
        msgpack.packb({"id": "r", "model": "m", "prompt": b"secret"}),
        msgpack.packb({"id": "r", "model": "m", "prompt": "x", "stop": "secret"}),
        msgpack.packb({"id": "r", "model": "m", "messages": [{"role": "secret" * 20}]}),
        msgpack.packb({"id": "r", "model": "m", "prompt": "x", "priority": "secret"}),
    ):
        with pytest.raises(RequestError) as caught:
            decode_request(data)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": "\ud800"}, "prompt"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages.0.content"),
        ({"messages": [Message(role="user", content="\ud800")]}, "messages.0.content"),
        ({"messages": [{"role": "user", "x": {"y": "\ud800"}}]}, "messages.0.x.y"),
        ({"messages": [{"role": "user", "x": 1 << 64}]}, "messages.0.x"),
        ({"prompt": "x", "stop": ["a", "\ud800"]}, "stop.1"),
        ({"prompt": "x", "tenant": "\ud800"}, "tenant"),
        ({"prompt": "x", "trace": "\ud800"}, "trace"),
        ({"prompt": "x", "model": "\ud800"}, "model"),
        ({"prompt": "x", "metadata": {"key": "\ud800"}}, "metadata.key"),
        ({"prompt": "x", "metadata": {"\ud800": 1}}, "metadata"),
        ({"prompt": "x", "metadata": {1: 1}}, "metadata"),
        ({"prompt": "x", "metadata": [1 << 64]}, "metadata.0"),
        ({"prompt": "x", "metadata": {"key": object()}}, "metadata.key"),
        ({"prompt": "x", "metadata": nested(70)}, "metadata"),
        ({"prompt": "x", "metadata": nested(5000)}, "metadata"),
    ],
)
def test_what_no_wire_carries_is_named_by_its_place(fields: dict[str, object], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        encode_request(make_request(**({"id": "a", "model": "m"} | fields)))
    assert caught.value.field == field
    assert "codec" not in str(caught.value)


def test_bytes_that_are_no_text_are_named_by_their_place() -> None:
    body = {"id": "a", "model": "m", "prompt": "x", "metadata": {"key": "good"}}
    data = msgpack.packb(body).replace(b"good", b"\xed\xa0\x80x")
    with pytest.raises(RequestError, match=r"metadata\.key: must be valid UTF-8") as caught:
        decode_request(data)
    assert caught.value.request_id == "a"
