"""The gateway before a real worker with a tiny model: what only a real one can show."""

import json
from collections.abc import Iterator

import httpx
import openai
import pytest
from gateway_server import RunningGateway, running_gateway
from httpx_sse import connect_sse
from paced_worker import paced_worker
from redis_servers import BINARIES, RedisServer, running
from tiny_models import save_tiny_model

CHAT = [{"role": "user", "content": "the mill and the stream"}]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder = tmp_path_factory.mktemp("model")
    save_tiny_model("llama", folder, chat_template=True)
    with (
        running(RedisServer(next(iter(BINARIES)), tmp_path_factory.mktemp("server"))) as server,
        paced_worker(server.url, folder, max_sequences=4, max_batched_tokens=32, max_model_len=256),
        running_gateway(
            server.url, tokenizers=(("tiny", folder / "tokenizer.json"),), heartbeat=5.0
        ) as gateway,
    ):
        yield gateway


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=gateway.v1, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


def ask(client: openai.OpenAI, **fields: object) -> openai.types.chat.ChatCompletion:
    defaults = {"model": "tiny", "messages": CHAT, "temperature": 0, "max_tokens": 20}
    return client.chat.completions.create(**{**defaults, **fields})


def test_streamed_and_whole_are_the_same(client: openai.OpenAI) -> None:
    whole = ask(client)
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage or chunks[-1].usage.completion_tokens == 20
    assert whole.choices[0].finish_reason in ("length", "stop")


def test_logprobs_name_the_tokens_of_the_text(client: openai.OpenAI) -> None:
    answer = ask(client, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for item in content:
        assert not item.token.startswith("token_id:")
        assert item.logprob <= 0
        assert len(item.top_logprobs) == 3
        assert item.top_logprobs[0].token == item.token, "greedy"


def test_logprobs_add_up_to_the_text_whole_and_streamed(client: openai.OpenAI) -> None:
    text = ask(client, max_tokens=40).choices[0].message.content
    fields = {"logprobs": True, "top_logprobs": 2, "max_tokens": 40, "stop": [text[12:15]]}
    (whole,) = ask(client, **fields).choices
    items = whole.logprobs.content
    joined = b"".join(bytes(item.bytes) for item in items)
    assert joined.decode("utf-8", "replace") == whole.message.content == text[: text.index(text[12:15])]
    chunks = [chunk.choices[0] for chunk in ask(client, stream=True, **fields)]
    assert [item for chunk in chunks if chunk.logprobs for item in chunk.logprobs.content] == items
    legacy = {"model": "tiny", "prompt": "the mill", "temperature": 0, "max_tokens": 40, "logprobs": 2}
    (answer,) = client.completions.create(**legacy).choices
    pieces = [chunk.choices[0] for chunk in client.completions.create(**legacy, stream=True)]
    offsets = [offset for piece in pieces if piece.logprobs for offset in piece.logprobs.text_offset]
    assert offsets == answer.logprobs.text_offset
    for token, offset in zip(answer.logprobs.tokens, offsets, strict=True):
        if not token.startswith(("bytes:", "<")):
            assert answer.text.startswith(token, offset)


def test_seeds_decide_and_choices_differ(client: openai.OpenAI) -> None:
    first, second = (ask(client, temperature=2, seed=3, n=2) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in second.choices]
    assert texts[0] != texts[1]


def test_stop(client: openai.OpenAI) -> None:
    text = ask(client).choices[0].message.content
    stop = text[5:8]
    answer = ask(client, stop=[stop])
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == text[: text.index(stop)]


def test_what_only_the_model_can_judge_is_the_callers_fault_too(client: openai.OpenAI) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model="tiny", prompt="mill " * 500, stream=stream)
        assert caught.value.param == "prompt"
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model="tiny", prompt=[1 << 30], stream=stream)


def test_followed_from_every_position(gateway: RunningGateway, client: openai.OpenAI) -> None:
    whole = ask(client, max_tokens=12)
    text = whole.choices[0].message.content
    with httpx.Client(base_url=gateway.url, timeout=60) as http:
        path = f"/v1/requests/{whole.id}/events"
        state = http.get(f"/v1/requests/{whole.id}").json()
        tokens = state["result"]["tokens"]
        for characters in range(len(text) + 1):
            for count in (0, len(tokens) // 2, len(tokens)):
                found, rest = "", []
                with connect_sse(
                    http, "GET", path, headers={"Last-Event-ID": f"{count}.{characters}"}
                ) as source:
                    for event in source.iter_sse():
                        body = json.loads(event.data) if event.data else {}
                        found += body.get("text", "")
                        rest += body.get("tokens", [])
                assert (found, rest) == (text[characters:], tokens[count:])


def test_system_view_has_the_worker(gateway: RunningGateway) -> None:
    view = httpx.get(f"{gateway.v1}/system", timeout=60).json()
    (worker,) = view["workers"]
    assert worker["model"] == "tiny"
    assert worker["blocks_total"] > 0
    assert view["time_to_first_token"]["count"] > 0
