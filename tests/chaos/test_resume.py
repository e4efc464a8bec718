"""A real model, its worker killed again and again: the same output as without, to the last logprob."""

import asyncio
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from redis_servers import RedisServer
from tiny_models import save_tiny_model
from waiting import eventually
from worker_processes import WorkerProcesses, worker_processes

from headrace.clients import AsyncClient, AsyncHandle, Delta, Done, Result

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

MODEL = "tiny"
KILLS = 3
TOKENS = 120
CASES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled with a seed": {"temperature": 1.0, "seed": 7},
    "sampled, filtered, without a seed": {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    "penalties, sampled": {"temperature": 0.9, "seed": 3, "frequency_penalty": 1.0},
    "logprobs": {"logprobs": 3},
    "logprobs, sampled": {"logprobs": 0, "temperature": 1.2, "seed": 11},
    "stop string that does not come": {"stop": ["\u2603 never"]},
}


class Follower:
    """Collects a request's events, and insists on their order."""

    def __init__(self, handle: AsyncHandle) -> None:
        self.tokens: list[int] = []
        self.text = ""
        self.epochs: set[int] = set()
        self._handle = handle

    async def run(self) -> Result:
        async for event in self._handle:
            if isinstance(event, Done):
                break
            assert isinstance(event, Delta)
            assert (event.seq, event.pos) == (len(self.tokens), len(self.text))
            self.tokens += event.tokens
            self.text += event.text
            self.epochs.add(event.epoch)
        return await self._handle.result()


async def serve(
    workers: WorkerProcesses, settings: dict[str, Any], requests: dict[str, dict[str, Any]], *, kills: int
) -> tuple[dict[str, Result], dict[str, Follower]]:
    """All requests at once, by one worker after another, each killed when every request has gone on."""
    results: dict[str, Result] = {}
    followers: dict[str, Follower] = {}
    async with AsyncClient(settings["redis"], model=MODEL, patience=120) as client:
        handles = {name: await client.submit("The water", **fields) for name, fields in requests.items()}
        followers = {name: Follower(handle) for name, handle in handles.items()}
        running = {name: asyncio.create_task(follower.run()) for name, follower in followers.items()}
        for kill in range(kills):
            worker = await workers.start(settings, step_seconds=0.02)
            goal = (kill + 1) * TOKENS // (kills + 2)

            def all_beyond(goal: int = goal) -> bool:
                return all(
                    len(followers[name].tokens) >= goal or task.done() for name, task in running.items()
                )

            await eventually(all_beyond, 120)
            await worker.kill()
        worker = await workers.start(settings, step_seconds=0.0)
        for name, task in running.items():
            results[name] = await asyncio.wait_for(task, 120)
        assert await worker.stop() == 0, workers.log.read_text()
    return results, followers


async def test_a_real_model_goes_on_as_if_its_worker_had_not_been_killed(
    private_server: RedisServer, tmp_path: Path
) -> None:
    folder = save_tiny_model("llama", tmp_path / "model")
    settings = {
        "model": str(folder),
        "served_name": MODEL,
        "redis": private_server.url,
        "device": "cpu",
        "dtype": "float32",
        "lease": 1.0,
        "max_attempts": 20,
        "kv_cache_memory": "4MiB",
        "max_sequences": 16,
        "max_batched_tokens": 256,
    }
    common = {"max_tokens": TOKENS, "ignore_eos": True}
    requests = {
        name: {"id": f"case{n}", **common, **fields} for n, (name, fields) in enumerate(CASES.items())
    }
    async with worker_processes("real", tmp_path) as workers:
        whole, _ = await serve(workers, settings, _renamed(requests, "whole"), kills=0)
        # Stop strings that lie across what a kill interrupts: taken from late in the greedy text.
        greedy = whole["greedy"].text
        late = greedy[len(greedy) * 2 // 3 :]
        stopping = {"stop": [late[:6], "\u2603"], "id": "stopping", **common}
        more, _ = await serve(workers, settings, _renamed({"stop string": stopping}, "whole"), kills=0)
        whole |= more
        requests["stop string"] = stopping
        results, followers = await serve(workers, settings, requests, kills=KILLS)
    for name, result in results.items():
        expected = whole[name]
        assert result.tokens == expected.tokens, name
        assert result.text == expected.text, name
        assert result.finish_reason == expected.finish_reason, name
        assert result.usage.prompt_tokens == expected.usage.prompt_tokens
        assert result.usage.completion_tokens == expected.usage.completion_tokens == len(result.tokens)
        assert (result.logprobs is None) == ("logprobs" not in requests[name])
        for (own, top), (own_before, top_before) in zip(
            result.logprobs or [], expected.logprobs or [], strict=True
        ):
            assert own == pytest.approx(own_before, abs=1e-4), name
            assert [token for token, _ in top] == [token for token, _ in top_before], name
        assert followers[name].tokens == result.tokens
        assert followers[name].text == result.text
        assert len(followers[name].epochs) > 1, "it was not interrupted"
    assert results["stop string"].finish_reason == "stop"
    assert len(results["greedy"].tokens) == TOKENS


def _renamed(requests: dict[str, dict[str, Any]], prefix: str) -> dict[str, dict[str, Any]]:
    """Under other ids; a request without a seed gets the noise of its id, so that one keeps it as a seed."""
    renamed: dict[str, dict[str, Any]] = {}
    for name, fields in requests.items():
        request_id = fields["id"]
        seed = int.from_bytes(blake2b(request_id.encode(), digest_size=8).digest(), "big", signed=True)
        renamed[name] = {"seed": seed, **fields, "id": f"{prefix}-{request_id}"}
    return renamed
