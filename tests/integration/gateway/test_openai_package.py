"""The official ``openai`` package against the gateway, as its users use it."""

import threading
from collections.abc import Iterator

import anyio
import openai
import pytest
from fake_worker import FakeWorker
from gateway_server import RunningGateway, running_gateway, silence
from waiting import eventually_sync

CHAT = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "one two three"}]


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=gateway.v1, api_key="unused", max_retries=0, timeout=30) as client:
        yield client


@pytest.mark.usefixtures("model")
class TestChat:
    def test_whole(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(model="m", messages=CHAT)
        assert answer.object == "chat.completion"
        assert answer.model == "m"
        (choice,) = answer.choices
        assert (choice.message.role, choice.message.content) == ("assistant", "one two three ")
        assert choice.finish_reason == "stop"
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 3)
        assert answer.usage.total_tokens == 10
        assert answer._request_id

    def test_stream(self, client: openai.OpenAI) -> None:
        chunks = list(client.chat.completions.create(model="m", messages=CHAT, stream=True))
        assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
        assert len({chunk.id for chunk in chunks}) == 1
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one two three "
        assert [chunk.choices[0].finish_reason for chunk in chunks[-2:]] == [None, "stop"]
        assert all(chunk.usage is None for chunk in chunks)

    def test_stream_with_usage(self, client: openai.OpenAI) -> None:
        chunks = list(
            client.chat.completions.create(
                model="m", messages=CHAT, stream=True, stream_options={"include_usage": True}
            )
        )
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens == 10

    def test_stream_helper(self, client: openai.OpenAI) -> None:
        with client.chat.completions.stream(model="m", messages=CHAT) as stream:
            final = stream.get_final_completion()
        assert final.choices[0].message.content == "one two three "

    def test_several_choices(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(model="m", messages=CHAT, n=3, seed=5)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 9)

    def test_several_choices_streamed(self, client: openai.OpenAI) -> None:
        texts = {0: "", 1: ""}
        for chunk in client.chat.completions.create(model="m", messages=CHAT, n=2, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        assert texts == {0: "one two three ", 1: "one two three "}

    def test_limits_of_length(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(model="m", messages=CHAT, max_completion_tokens=2)
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("one two ", "length")
        answer = client.chat.completions.create(model="m", messages=CHAT, max_tokens=1, stop="zzz")
        assert answer.choices[0].message.content == "one "

    def test_stop(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(model="m", messages=CHAT, stop=["two"])
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("one ", "stop")

    def test_logprobs(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(model="m", messages=CHAT, logprobs=True, top_logprobs=2)
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content is not None
        assert len(logprobs.content) == 3
        assert [item.token for item in logprobs.content][:2] == ["token_id:1000", "token_id:1001"]
        assert [item.bytes for item in logprobs.content] == [None] * 3
        assert logprobs.content[0].logprob == -0.25
        assert [top.logprob for top in logprobs.content[0].top_logprobs] == [-0.25, -1.25]
        chunks = client.chat.completions.create(model="m", messages=CHAT, logprobs=True, stream=True)
        named = [
            item.token
            for chunk in chunks
            if chunk.choices[0].logprobs is not None
            for item in chunk.choices[0].logprobs.content or []
        ]
        assert named == ["token_id:1000", "token_id:1001", "token_id:1002"]

    def test_content_in_parts(self, client: openai.OpenAI) -> None:
        parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
        answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": parts}])
        assert answer.choices[0].message.content == "one two "


@pytest.mark.usefixtures("model")
class TestCompletions:
    def test_whole(self, client: openai.OpenAI) -> None:
        answer = client.completions.create(model="m", prompt="a b c")
        assert answer.object == "text_completion"
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("a b c ", "stop")

    def test_stream(self, client: openai.OpenAI) -> None:
        chunks = list(client.completions.create(model="m", prompt="a b c", stream=True))
        assert "".join(chunk.choices[0].text for chunk in chunks) == "a b c "
        assert chunks[-1].choices[0].finish_reason == "stop"

    def test_sixteen_tokens_unless_told(self, client: openai.OpenAI) -> None:
        answer = client.completions.create(model="m", prompt="x " * 30)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 16

    @pytest.mark.parametrize(
        ("prompt", "texts"),
        [
            (["a b", "c d"], ["a b ", "c d "]),
            ([1, 2, 3], ["1 2 3 "]),
            ([[1, 2], [3]], ["1 2 ", "3 "]),
        ],
    )
    def test_prompts(self, client: openai.OpenAI, prompt: list, texts: list[str]) -> None:
        answer = client.completions.create(model="m", prompt=prompt)
        assert [choice.text for choice in answer.choices] == texts
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == 7 * len(texts)

    def test_logprobs(self, client: openai.OpenAI) -> None:
        logprobs = client.completions.create(model="m", prompt="a b", logprobs=2).choices[0].logprobs
        assert logprobs is not None
        assert logprobs.token_logprobs == [-0.25, -0.25]
        assert logprobs.tokens == ["token_id:1000", "token_id:1001"]
        assert logprobs.text_offset is None, "nobody knows the vocabulary"


@pytest.mark.usefixtures("model")
def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["m"]
    assert client.models.retrieve("m").id == "m"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


@pytest.mark.usefixtures("model")
@pytest.mark.anyio
async def test_async_streams_side_by_side(gateway: RunningGateway) -> None:
    texts: list[str] = []

    async def ask(client: openai.AsyncOpenAI, text: str) -> None:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": text}], stream=True
        )
        texts.append("".join([chunk.choices[0].delta.content or "" async for chunk in stream]))

    async with openai.AsyncOpenAI(base_url=gateway.v1, api_key="unused", max_retries=0) as client:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(ask, client, f"this is {number}")
    assert sorted(texts) == sorted(f"this is {number} " for number in range(20))


class TestErrors:
    @pytest.mark.usefixtures("model")
    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"temperature": 5}, "temperature"),
            ({"temperature": "hot"}, "temperature"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"top_logprobs": 3}, "top_logprobs"),
            ({"stop": [""]}, "stop"),
            ({"n": 1000}, "n"),
            ({"messages": []}, "messages"),
            ({"messages": [{"content": "x"}]}, "messages.0.role"),
            ({"messages": [{"role": "user", "content": 7}]}, "messages.0.content"),
            (
                {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
                "messages.0.content",
            ),
            ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
            ({"response_format": {"type": "json_object"}}, "response_format"),
            ({"logit_bias": {"5": 1}}, "logit_bias"),
            ({"stream_options": {"include_usage": True}}, "stream_options"),
        ],
    )
    def test_bad_field(self, client: openai.OpenAI, fields: dict, param: str) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**{"model": "m", "messages": CHAT, **fields})
        assert caught.value.param == param
        assert caught.value.type == "invalid_request_error"
        assert param in caught.value.message

    @pytest.mark.usefixtures("model")
    def test_unknown_model(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(model="gpt-4", messages=CHAT)
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")

    @pytest.mark.usefixtures("gateway")
    def test_no_worker(self, client: openai.OpenAI, model: FakeWorker) -> None:
        client.chat.completions.create(model="m", messages=CHAT)
        silence(model)
        with pytest.raises(openai.InternalServerError) as caught:
            while True:  # what was seen is used for a second
                client.chat.completions.create(model="m", messages=CHAT)
        assert (caught.value.status_code, caught.value.code) == (503, "no_worker")
        assert int(caught.value.response.headers["retry-after"]) > 0

    def test_full_queue(self, redis_url: str, worker: FakeWorker) -> None:
        del worker
        with (
            running_gateway(redis_url, queue_limit=2) as gateway,
            openai.OpenAI(base_url=gateway.v1, api_key="unused", max_retries=0) as client,
        ):
            streams = [client.chat.completions.create(model="m", messages=CHAT, stream=True) for _ in "ab"]
            with pytest.raises(openai.RateLimitError) as caught:
                client.chat.completions.create(model="m", messages=CHAT)
            assert caught.value.code == "queue_full"
            assert 1 <= int(caught.value.response.headers["retry-after"]) <= 600
            for stream in streams:
                stream.close()

    def test_retries_until_there_is_room(self, redis_url: str, worker: FakeWorker) -> None:
        with (
            running_gateway(redis_url, queue_limit=1) as gateway,
            openai.OpenAI(base_url=gateway.v1, api_key="unused", max_retries=1) as client,
        ):
            answer_one = threading.Thread(target=lambda: worker.finish(worker.take().id))
            answer_one.start()
            client.chat.completions.create(model="m", messages=CHAT)  # now it is known how fast they leave
            answer_one.join()
            first = client.chat.completions.create(model="m", messages=CHAT, stream=True)

            def make_room_once_refused() -> None:
                refused = gateway.gateway.metrics.refused.labels("queue_full")
                while not refused._value.get():
                    threading.Event().wait(0.01)
                for _ in "ab":
                    request = worker.take(60)
                    worker.emit(request.id, "done")
                    worker.finish(request.id)

            helper = threading.Thread(target=make_room_once_refused)
            helper.start()
            answer = client.chat.completions.create(model="m", messages=CHAT)
            assert answer.choices[0].message.content == "done"
            helper.join()
            first.close()


@pytest.mark.parametrize("stream", [True, False])
def test_a_timeout_with_retries_leaves_nothing_running(
    gateway: RunningGateway, worker: FakeWorker, stream: bool
) -> None:
    # Shorter than the gateway's signs of life, the first of which would begin a stream.
    with openai.OpenAI(base_url=gateway.v1, api_key="unused", timeout=0.2) as client:
        with pytest.raises(openai.APITimeoutError):
            client.chat.completions.create(model="m", messages=CHAT, stream=stream)
        asked = [worker.take().id for _ in range(client.max_retries + 1)]
    eventually_sync(lambda: all(map(worker.cancelled, asked)))
