"""A real worker, a real server, a real (tiny) model: what a client gets is what transformers computes."""

import anyio
import msgpack
import pytest
import redis
from live_worker import MODEL, live_worker
from served_model import Reference

from headrace.clients import AsyncClient, Delta, Done

pytestmark = pytest.mark.anyio

PROMPTS = ["The water", "A request waits in the queue", "def add(a, b):", "水が", "Every token of the answer"]


async def test_greedy_tokens_are_those_of_transformers_whoever_shares_the_batch(
    redis_url: str, client: AsyncClient, reference: Reference
) -> None:
    results: dict[str, list[int]] = {}

    async def ask(prompt: str, delay: float) -> None:
        await anyio.sleep(delay)
        handle = await client.submit(prompt, max_tokens=24)
        tokens: list[int] = []
        text = ""
        async for event in handle:
            if isinstance(event, Delta):
                assert (event.seq, event.pos) == (len(tokens), len(text))
                tokens += event.tokens
                text += event.text
            else:
                assert event.seq == len(tokens)
        assert text == reference.decode(tokens)
        results[prompt] = tokens

    async with (
        live_worker(redis_url, reference.folder, max_batched_tokens=7, block_size=4),
        anyio.create_task_group() as tasks,
    ):
        for number, prompt in enumerate(PROMPTS):
            tasks.start_soon(ask, prompt, number * 0.02)
    assert results == {prompt: reference.greedy(prompt, 24) for prompt in PROMPTS}


async def test_usage_metadata_and_cached_tokens(
    redis_url: str, client: AsyncClient, reference: Reference
) -> None:
    async with live_worker(redis_url, reference.folder, block_size=4):
        prompt = PROMPTS[1]
        first = await (await client.submit(prompt, max_tokens=5, metadata={"user": [1, "é"]})).result()
        second = await (await client.submit(prompt, max_tokens=5)).result()
        other = await (await client.submit(prompt, max_tokens=5, tenant="somebody")).result()
    length = len(reference.encode(prompt))
    assert first.metadata == {"user": [1, "é"]}
    assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (length, 5)
    assert first.usage.cached_tokens == other.usage.cached_tokens == 0
    assert second.usage.cached_tokens == (length - 1) // 4 * 4
    assert first.tokens == second.tokens == other.tokens
    assert first.finish_reason == "length"


async def test_chat_and_token_prompts(redis_url: str, client: AsyncClient, reference: Reference) -> None:
    messages = [{"role": "user", "content": "What turns the wheel?"}]
    ids = reference.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    async with live_worker(redis_url, reference.folder):
        chat = await (await client.submit(messages=messages, max_tokens=8)).result()
        tokens = await (await client.submit(tokens=[5, 9, 13, 40], max_tokens=8)).result()
    assert chat.tokens == reference.greedy(ids, 8)
    assert tokens.tokens == reference.greedy([5, 9, 13, 40], 8)


async def test_stop_strings_and_stop_tokens(
    redis_url: str, client: AsyncClient, reference: Reference
) -> None:
    prompt = PROMPTS[0]
    tokens = reference.greedy(prompt, 24)
    text = reference.decode(tokens)
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    async with live_worker(redis_url, reference.folder):
        by_string = await (await client.submit(prompt, max_tokens=24, stop=["never", stop])).result()
        by_token = await (await client.submit(prompt, max_tokens=24, stop_tokens=[tokens[5]])).result()
    assert by_string.text == text[: text.index(stop)]
    assert by_string.finish_reason == by_token.finish_reason == "stop"
    assert by_string.tokens == tokens[: len(by_string.tokens)]
    assert stop in reference.decode(by_string.tokens)
    assert by_token.tokens == tokens[: tokens.index(tokens[5])]


async def test_logprobs_are_those_of_the_model(
    redis_url: str, client: AsyncClient, reference: Reference
) -> None:
    async with live_worker(redis_url, reference.folder):
        handle = await client.submit(PROMPTS[0], max_tokens=6, logprobs=3, temperature=0.9, seed=4)
        result = await handle.result()
    ids = reference.encode(PROMPTS[0])
    expected = reference.logprobs(ids + result.tokens)
    assert result.logprobs is not None
    assert len(result.logprobs) == len(result.tokens) == 6
    for at, (token, (own, top)) in enumerate(zip(result.tokens, result.logprobs, strict=True)):
        row = expected[len(ids) - 1 + at]
        assert own == pytest.approx(row[token].item(), abs=1e-4)
        values, tokens = row.topk(3)
        assert [token for token, _ in top] == tokens.tolist()
        assert [logprob for _, logprob in top] == pytest.approx(values.tolist(), abs=1e-4)


async def test_sampling_depends_on_the_seed_and_not_on_the_batch(
    redis_url: str, client: AsyncClient, reference: Reference
) -> None:
    sampling = {"temperature": 1.2, "top_p": 0.95, "top_k": 50, "max_tokens": 16, "ignore_eos": True}
    async with live_worker(redis_url, reference.folder):
        alone = await (await client.submit(PROMPTS[0], seed=7, **sampling)).result()
        crowd = [
            await client.submit(prompt, seed=number, **sampling) for number, prompt in enumerate(PROMPTS)
        ]
        again = await client.submit(PROMPTS[0], seed=7, **sampling)
        other = await client.submit(PROMPTS[0], seed=8, **sampling)
        for handle in crowd:
            await handle.result()
        assert (await again.result()).tokens == alone.tokens
        assert (await other.result()).tokens != alone.tokens
    assert len(alone.tokens) == 16


async def test_a_bare_entry_from_any_language_is_served(
    redis_url: str, redis_client: redis.Redis, client: AsyncClient, reference: Reference
) -> None:
    body = msgpack.packb(
        {"v": 1, "id": "bare", "model": MODEL, "prompt": PROMPTS[0], "max_tokens": 4, "zz": 1}
    )
    redis_client.xadd(f"headrace:queue:{{{MODEL}}}:low:3", {"r": body})
    async with live_worker(redis_url, reference.folder):
        result = await client.attach("bare", wait=20).result()
    assert result.tokens == reference.greedy(PROMPTS[0], 4)
    assert redis_client.xlen(f"headrace:queue:{{{MODEL}}}:low:3") == 0


async def test_an_idle_worker_is_woken_by_a_request(
    redis_url: str, client: AsyncClient, reference: Reference
) -> None:
    async with live_worker(redis_url, reference.folder):
        for number in range(3):
            with anyio.fail_after(20):
                result = await (await client.submit(PROMPTS[number], max_tokens=2)).result()
            assert len(result.tokens) == 2
            await anyio.sleep(0.05)


async def test_memory_pressure_preempts_and_nobody_notices(
    redis_url: str, client: AsyncClient, reference: Reference
) -> None:
    settings = {"block_size": 4, "kv_cache_memory": "25KiB", "max_model_len": 48, "prefix_caching": False}
    async with live_worker(redis_url, reference.folder, **settings) as assembly:
        assert assembly.engine.status.blocks_total < 30
        handles = [await client.submit(prompt, max_tokens=30) for prompt in PROMPTS]
        results = [await handle.result() for handle in handles]
    for prompt, result in zip(PROMPTS, results, strict=True):
        expected = reference.greedy(prompt, min(30, 48 - len(reference.encode(prompt))))
        assert result.tokens == expected


async def test_the_log_alone_tells_everything_once_the_request_has_ended(
    redis_url: str, redis_client: redis.Redis, client: AsyncClient, reference: Reference
) -> None:
    async with live_worker(redis_url, reference.folder, result_ttl=1000):
        handle = await client.submit(PROMPTS[0], max_tokens=12, id="whole")
        await handle.result()
    events = [msgpack.unpackb(fields[b"e"]) for _, fields in redis_client.xrange("headrace:events:{whole}")]
    assert [event["type"] for event in events] == ["delta", "done"]
    assert events[0]["tokens"] == reference.greedy(PROMPTS[0], 12)
    assert events[0]["text"] == reference.decode(events[0]["tokens"])
    assert (events[0]["seq"], events[0]["pos"], events[1]["seq"]) == (0, 0, len(events[0]["tokens"]))
    assert 0 < redis_client.ttl("headrace:events:{whole}") <= 1000
    assert 0 < redis_client.ttl("headrace:request:{whole}") <= 1000
    async for event in client.attach("whole"):
        assert isinstance(event, Delta | Done)
