"""Cancelling, deadlines, draining: at any point, with one end each, and no block lost."""

import time
from typing import Any

import anyio
import pytest
import redis
from live_worker import MODEL, live_worker
from served_model import Reference
from waiting import eventually

from headrace.clients import AsyncClient, AsyncHandle, Delta
from headrace.worker.engine.engine import Engine
from headrace.worker.engine.step import Step

pytestmark = pytest.mark.anyio

ENDLESS: dict[str, Any] = {"max_tokens": 480, "ignore_eos": True}


async def first_token(handle: AsyncHandle) -> None:
    async for event in handle:
        assert isinstance(event, Delta)
        return


async def test_cancel_while_running_ends_with_what_there_is(
    redis_url: str, client: AsyncClient, reference: Reference
) -> None:
    async with live_worker(redis_url, reference.folder) as assembly:
        handle = await client.submit("The water", **ENDLESS)
        await first_token(handle)
        assert await handle.cancel()
        result = await handle.result()
        assert result.finish_reason == "cancelled"
        assert 0 < len(result.tokens) < ENDLESS["max_tokens"]
        assert result.text == reference.decode(result.tokens)
        await eventually(lambda: assembly.engine.status.blocks_free == assembly.engine.status.blocks_total)
        assert not await handle.cancel()


async def test_cancel_in_the_queue_costs_no_computation(
    redis_url: str, redis_client: redis.Redis, client: AsyncClient, reference: Reference
) -> None:
    handle = await client.submit("The water", **ENDLESS)
    assert await handle.cancel()
    async with live_worker(redis_url, reference.folder) as assembly:
        result = await handle.result()
        assert assembly.engine.status.prefix_queried_tokens == 0
    assert (result.finish_reason, result.tokens) == ("cancelled", [])
    assert redis_client.xlen(f"headrace:queue:{{{MODEL}}}:normal:0") == 0


async def test_cancel_while_waiting_behind_others(
    redis_url: str, client: AsyncClient, reference: Reference
) -> None:
    async with live_worker(redis_url, reference.folder, max_sequences=1):
        running = await client.submit("The water", **ENDLESS)
        await first_token(running)
        waiting = await client.submit("A request", **ENDLESS)
        assert await waiting.cancel()
        await running.cancel()
        assert (await waiting.result()).finish_reason == "cancelled"
        assert (await running.result()).finish_reason == "cancelled"


async def test_deadlines_in_the_queue_and_while_running(
    redis_url: str, client: AsyncClient, reference: Reference
) -> None:
    expired = await client.submit("The water", deadline=int(time.time() * 1000) - 1, **ENDLESS)
    async with live_worker(redis_url, reference.folder, max_sequences=1) as assembly:
        assert (await expired.result()).finish_reason == "expired"
        assert assembly.engine.status.prefix_queried_tokens == 0
        # The first keeps the only place until the second's deadline has passed.
        first = await client.submit("The water", **ENDLESS)
        await first_token(first)
        second = await client.submit("A request", deadline=int(time.time() * 1000), **ENDLESS)
        await first.cancel()
        assert (await second.result()).finish_reason == "expired"
        assert assembly.engine.status.running == 0


async def test_a_deadline_stops_a_running_request_with_what_it_had(
    redis_url: str, client: AsyncClient, reference: Reference
) -> None:
    def slow_device(step: Step, engine: Engine) -> None:
        del step, engine
        time.sleep(0.02)  # so that 480 tokens take longer than the deadline allows

    settings = {"max_model_len": 500, "kv_cache_memory": "4MiB", "observe": slow_device}
    async with live_worker(redis_url, reference.folder, **settings):
        handle = await client.submit("The water", deadline=int(time.time() * 1000) + 1500, **ENDLESS)
        result = await handle.result()
    assert result.finish_reason == "expired"
    assert len(result.tokens) < 480
    assert result.text == reference.decode(result.tokens)


async def test_what_a_stopping_worker_cannot_finish_another_goes_on_with(
    redis_url: str, client: AsyncClient, reference: Reference
) -> None:
    """The client sees one stream; its tokens are those of one uninterrupted run."""
    sampling: dict[str, Any] = {"temperature": 0.8, "seed": 3, "max_tokens": 150, "ignore_eos": True}
    longest = {"max_model_len": 400, "kv_cache_memory": "4MiB"}
    async with live_worker(redis_url, reference.folder, **longest):
        whole = await (await client.submit("The water", logprobs=1, **sampling)).result()
    events: list[Delta] = []

    async def follow(handle: AsyncHandle) -> None:
        async for event in handle:
            if isinstance(event, Delta):
                assert (event.seq, event.pos) == (
                    sum(len(past.tokens) for past in events),
                    sum(len(past.text) for past in events),
                )
                events.append(event)

    handle = await client.submit("The water", logprobs=1, **sampling)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow, handle)
        for _ in range(2):
            async with live_worker(redis_url, reference.folder, grace=0.0, **longest):
                count = len(events)
                await eventually(lambda count=count: len(events) > count + 20)
        async with live_worker(redis_url, reference.folder, **longest):
            result = await handle.result()
    assert [token for event in events for token in event.tokens] == whole.tokens == result.tokens
    assert "".join(event.text for event in events) == whole.text == result.text
    assert {event.epoch for event in events} == {1, 2, 3}
    assert result.usage.completion_tokens == 150
    assert result.logprobs is not None
    assert [own for own, _ in result.logprobs] == pytest.approx([own for own, _ in whole.logprobs], abs=1e-4)


async def test_draining_finishes_what_fits_into_the_grace_time(
    redis_url: str, client: AsyncClient, reference: Reference
) -> None:
    async with live_worker(redis_url, reference.folder):
        handle = await client.submit("The water", max_tokens=30, ignore_eos=True)
        await first_token(handle)
    # The worker has been told to stop, and has stopped.
    status = await handle.status()
    assert status.status == "finished"
    assert len((await handle.result()).tokens) == 30
