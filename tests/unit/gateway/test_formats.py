"""Positions, frames, JSON, OpenAI's objects: what readers of streams rely on."""

import asyncio
import json
from collections.abc import AsyncGenerator
from math import inf, nan
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.clients.gateway.errors import ApiError
from headrace.clients.gateway.json_body import compact
from headrace.clients.gateway.openai.chat_format import ChatFormat
from headrace.clients.gateway.openai.completion_format import CompletionFormat
from headrace.clients.gateway.openai.placement import PlacedToken
from headrace.clients.gateway.openai.vocabulary import load_vocabularies, name_of
from headrace.clients.gateway.settings import GatewaySettings
from headrace.clients.gateway.streams.merge import merge_events
from headrace.clients.gateway.streams.position import StreamPosition
from headrace.clients.gateway.streams.sse import frame
from headrace.clients.json_values import plain
from headrace.clients.protocol import Delta, Done, Event, Usage

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.binary(), inner),
)


@given(st.integers(0, 10**9 - 1), st.integers(0, 10**9 - 1), st.booleans())
def test_positions_are_read_back(tokens: int, characters: int, ended: bool) -> None:
    position = StreamPosition(tokens, characters, ended)
    assert StreamPosition.parse(str(position)) == position


@given(st.text())
def test_what_is_no_position_is_refused(text: str) -> None:
    try:
        assert str(StreamPosition.parse(text)) is not None
    except ApiError as error:
        assert (error.status, error.param) == (400, "after")


@given(JSON)
def test_frames_carry_any_metadata_in_one_line_of_strict_json(value: object) -> None:
    data = compact(plain(value))
    assert b"\n" not in data
    json.loads(data, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert frame(data, event="e", event_id="1.2") == b"id: 1.2\nevent: e\ndata: " + data + b"\n\n"


def test_impossible_tokens_have_a_number_for_a_logprob() -> None:
    placed = [PlacedToken(1, -inf, [(3, nan)]), PlacedToken(2, -0.5, [])]
    for form in (ChatFormat(None), CompletionFormat(None)):
        text = json.dumps(form.piece(0, "ab", placed))
        assert "Infinity" not in text
        assert "NaN" not in text
        assert "-9999.0" in text


def test_tokens_are_named_by_the_models_vocabulary(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    path = tmp_path / "tokenizer.json"
    Tokenizer(models.WordLevel({"mill": 0, "race": 1}, unk_token="mill")).save(str(path))  # noqa: S106
    vocabulary = load_vocabularies({"m": path})["m"]
    assert [name_of(vocabulary, token) for token in (0, 1, 99)] == [" mill", " race", "token_id:99"]
    assert [name_of(None, token) for token in (0, 1)] == ["token_id:0", "token_id:1"]
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        load_vocabularies({"m": path})


async def events_of(pieces: list[str]) -> AsyncGenerator[Event]:
    for number, piece in enumerate(pieces):
        await asyncio.sleep(0)
        yield Delta(number, 0, 1, [number], piece)
    yield Done(len(pieces), 1, "stop", Usage())


@pytest.mark.anyio
async def test_merged_streams_keep_their_own_order_and_wait_for_their_reader() -> None:
    texts = [["a", "b", "c"], [], ["d", "e"]]
    asked = [0, 0, 0]

    async def counting(number: int) -> AsyncGenerator[Event]:
        async for event in events_of(texts[number]):
            asked[number] += 1
            yield event

    leave: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    stream = merge_events([counting(number) for number in range(3)], 5, 5, leave)
    first = await anext(stream)
    for _ in range(50):
        await asyncio.sleep(0)
    assert max(asked) == 1, "nobody asked for more"
    found: list[list[Event]] = [[], [], []]
    assert first is not None
    found[first[0]].append(first[1])
    async for item in stream:
        if item is not None:
            found[item[0]].append(item[1])
    for number in range(3):
        assert [event.text for event in found[number] if isinstance(event, Delta)] == texts[number]
        assert isinstance(found[number][-1], Done)


@pytest.mark.anyio
async def test_merged_streams_end_at_once_when_the_reader_leaves() -> None:
    closed = asyncio.Event()

    async def silent() -> AsyncGenerator[Event]:
        try:
            await asyncio.Event().wait()
            yield Done(0, 1, "stop", Usage())
        finally:
            closed.set()

    leave: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    stream = merge_events([silent()], 0.01, 0.01, leave)
    assert await anext(stream) is None
    leave.set_result(None)
    assert [item async for item in stream] == []
    assert closed.is_set()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("queue_limit", 0),
        ("heartbeat", 0.0),
        ("namespace", "a{b}"),
        ("cors_origins", ("https://a.example/",)),
        ("cors_origins", ("a.example",)),
        ("webhook_origins", ("https://user@a.example",)),
        ("webhook_secret", "short"),
    ],
)
def test_settings_out_of_range_are_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        GatewaySettings(**{field: value})  # pyright: ignore[reportArgumentType]
