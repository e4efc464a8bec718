"""JavaScript and Python say and understand the same bytes, and refuse the same requests."""

import base64
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from js_client import JsProcess
from node_packages import CLIENT, ROOT
from redis.crc import key_slot

from headrace.clients.protocol import (
    Delta,
    Done,
    ErrorInfo,
    Event,
    RequestError,
    Usage,
    decode_request,
    encode_event,
    make_request,
)

pytestmark = pytest.mark.anyio
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
"""Without shrinking, which takes minutes: a failing request is short enough to read."""
fuzz = settings(
    deadline=None,
    max_examples=25,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)

COUNTS = st.integers(0, (1 << 53) - 1)
TOKENS = st.integers(0, (1 << 31) - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NAMES = TEXT.filter(lambda name: name not in ("__proto__", "$"))
"""The first no JavaScript decoder reads; the second is how this test writes what JSON has no form for."""
DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | FLOATS | TEXT | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
LOGPROBS = st.tuples(FLOATS, st.lists(st.tuples(TOKENS, FLOATS), max_size=3))
DELTAS = st.builds(
    Delta, COUNTS, COUNTS, COUNTS, st.lists(TOKENS), TEXT, st.none() | st.lists(LOGPROBS, max_size=3)
)
DONES = st.builds(
    Done,
    COUNTS,
    COUNTS,
    st.sampled_from(["stop", "length", "cancelled", "expired", "error"]),
    st.builds(Usage, COUNTS, COUNTS, COUNTS),
    DATA,
    st.none() | st.builds(ErrorInfo, TEXT, TEXT),
)


def written(value: Any) -> Any:
    """As the driver and JSON write it: exact numbers, bytes by name."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return {"$": "bytes", "is": base64.b64encode(value).decode()}
    if isinstance(value, int):
        return value if abs(value) < 1 << 53 else {"$": "bigint", "is": str(value)}
    if isinstance(value, float):
        return value
    if isinstance(value, dict):
        return {name: written(item) for name, item in value.items()}
    return [written(item) for item in value]


def event_written(event: Event) -> dict[str, Any]:
    if isinstance(event, Delta):
        logprobs = {} if event.logprobs is None else {"logprobs": written(event.logprobs)}
        return {
            "type": "delta",
            "seq": event.seq,
            "pos": event.pos,
            "epoch": event.epoch,
            "tokens": event.tokens,
            "text": event.text,
            **logprobs,
        }
    usage = {name: getattr(event.usage, name) for name in Usage.__slots__}
    error = event.error and {"error": {"code": event.error.code, "message": event.error.message}}
    return {
        "type": "done",
        "seq": event.seq,
        "epoch": event.epoch,
        "finish_reason": event.finish_reason,
        "usage": usage,
        "metadata": written(event.metadata),
        **(error or {}),
    }


@fuzz
@given(events=st.lists(DELTAS | DONES, min_size=5, max_size=30))
async def test_every_event_of_a_worker_is_read(node: JsProcess, events: list[Event]) -> None:
    data = [base64.b64encode(encode_event(event)).decode() for event in events]
    read = await node.do("decode", events=data)
    assert read == [event_written(event) for event in events]


@fuzz
@given(data=st.lists(st.binary(), max_size=30))
async def test_what_is_no_event_is_passed_over(node: JsProcess, data: list[bytes]) -> None:
    read = await node.do("decode", events=[base64.b64encode(item).decode() for item in data])
    assert read == [None] * len(data)


def around(least: float, most: float, step: float) -> st.SearchStrategy[Any]:
    return st.sampled_from([least - step, least, least + step, most - step, most, most + step])


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "id": st.text("aZ0_-. é", max_size=4) | st.sampled_from(["a" * 128, "a" * 129, "a\n"]),
    "model": st.text("aZ0._:/@+-{} ", max_size=4) | st.sampled_from(["m" * 200, "m" * 201]),
    "prompt": TEXT | st.sampled_from([None, 7, "\ud800x", "😀" * 1000]),
    "messages": st.none()
    | st.lists(
        st.fixed_dictionaries(
            {"role": TEXT | st.sampled_from(["r" * 64, "😀" * 64, "😀" * 65])},
            optional={"content": TEXT | st.none() | st.just(5), "name": TEXT, "parts": DATA},
        ),
        max_size=3,
    ),
    "tokens": st.none() | st.lists(TOKENS | st.sampled_from([-1, 1 << 31, "1", True]), max_size=4),
    "max_tokens": around(1, 1 << 20, 1) | st.sampled_from([None, True, "5"]),
    "temperature": around(0, 100, 0.5) | FLOATS | st.integers(-1, 101) | st.just("hot"),
    "top_p": around(0, 1, 0.25),
    "top_k": around(0, 1 << 31, 1),
    "min_p": around(0, 1, 0.25),
    "repetition_penalty": around(0, 10, 0.5),
    "presence_penalty": around(-2, 2, 0.5),
    "frequency_penalty": around(-2, 2, 0.5),
    "seed": st.none() | st.integers(-(1 << 63) - 1, 1 << 63),
    "stop": st.lists(TEXT | st.sampled_from(["", "é" * 256, "😀" * 257]), max_size=3) | st.just(["x"] * 17),
    "stop_tokens": st.lists(TOKENS, max_size=3) | st.sampled_from([[0] * 256, [0] * 257, None]),
    "ignore_eos": st.booleans() | st.sampled_from([0, None]),
    "logprobs": st.none() | around(0, 20, 1),
    "priority": st.sampled_from(["high", "normal", "low", "urgent", None]),
    "deadline": st.none() | around(0, (1 << 63) - 1, 1) | st.integers(0, 1 << 54),
    "tenant": st.none() | TEXT | st.sampled_from(["t" * 256, "😀" * 256, "😀" * 257]),
    "metadata": DATA | st.sampled_from(["x" * 16381, "x" * 16382]),
    "trace": st.none() | TEXT | st.sampled_from(["t" * 256, "t" * 257]),
}
BASE = {"id": "a", "model": "m", "prompt": "p"}
REQUESTS = st.fixed_dictionaries({}, optional=FIELDS).map(lambda fields: BASE | fields)


@settings(fuzz, max_examples=30)
@example(requests=[BASE | {"prompt": "é" * (1 << 21)}, BASE | {"prompt": "é" * (1 << 21) + "x"}])
@example(requests=[BASE | {"prompt": None, "tokens": [1] * (1 << 20)}])
@example(requests=[BASE | {"metadata": {"k": {"k": [1 << 53, -(1 << 53), 1 << 32, (1 << 64) - 1]}}}])
@given(requests=st.lists(REQUESTS, min_size=5, max_size=20))
async def test_the_same_requests_are_accepted_and_mean_the_same(
    node: JsProcess, requests: list[dict[str, Any]]
) -> None:
    said = await node.do("encode", requests=[written(request) for request in requests])
    for fields, answer in zip(requests, said, strict=True):
        try:
            expected = make_request(**fields)
        except RequestError as error:
            assert isinstance(answer, dict), f"Python refuses it: {error}"
            assert answer["name"] == "RequestError"
            named = str(answer["field"]).split(".")[0]
            assert named == error.field.split(".")[0] or _several_are_wrong(fields, named)
        else:
            assert isinstance(answer, str), f"JavaScript refuses it: {answer}"
            assert decode_request(base64.b64decode(answer)) == expected


def _several_are_wrong(fields: dict[str, Any], named: str) -> bool:
    """Whether what JavaScript names is wrong as well, by itself."""
    try:
        make_request(**(BASE | {named: fields.get(named)}) if named in fields else fields)
    except RequestError:
        return True
    return False


@fuzz
@given(keys=st.lists(TEXT | st.text("{}ab"), max_size=50))
async def test_slots_of_a_cluster(node: JsProcess, keys: list[str]) -> None:
    assert await node.do("slots", keys=keys) == [key_slot(key.encode()) for key in keys]


@pytest.mark.usefixtures("packages")
def test_the_scripts_are_those_of_all_clients() -> None:
    built = (CLIENT / "dist" / "scripts" / "sources.js").read_text()
    sources = json.loads(built[built.index("{") : built.rindex("}") + 1])
    assert set(sources) == {"cancel", "enqueue", "read", "record", "submit", "withdraw"}
    for name, source in sources.items():
        assert source == (ROOT / "clients" / "scripts" / f"{name}.lua").read_text()
