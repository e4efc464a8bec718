"""A low request among high ones that never stop, and one displaced from a full worker to an idle one."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import redis
from simulated_model import MODEL, simulated_assembly, uninterrupted
from waiting import eventually

from headrace.clients import AsyncClient
from headrace.clients.protocol import Keys, make_request
from headrace.worker import displaced
from headrace.worker.app import run_worker
from headrace.worker.config import WorkerConfig
from headrace.worker.engine.engine import Engine
from headrace.worker.engine.iteration import Iteration
from headrace.worker.engine.step import Step

pytestmark = pytest.mark.anyio

KEYS = Keys()
LONG_PROMPT, OTHER_PROMPT = "request " * 38, "another " * 38
"""304 tokens each: nineteen of a cache's blocks."""


@dataclass
class Watched:
    """What one worker has done. While ``held``, it computes nothing after it has displaced somebody."""

    steps: list[Step] = field(default_factory=list)
    displaced: threading.Event = field(default_factory=threading.Event)
    going_on: threading.Event = field(default_factory=threading.Event)
    in_no_hurry: threading.Event = field(default_factory=threading.Event)

    def observe(self, step: Step, engine: Engine) -> None:
        engine.check()
        self.steps.append(step)

    def iterations_of(self, request_id: str) -> list[int]:
        return [
            number
            for number, step in enumerate(self.steps)
            if any(delta.sequence_id == request_id for delta in step.deltas)
        ]

    @property
    def preempted(self) -> list[str]:
        return [name for step in self.steps for name in step.preempted]


@asynccontextmanager
async def simulated_worker(
    url: str, watched: Watched, *, num_blocks: int, ageing: float, **more: Any
) -> AsyncIterator[None]:
    settings: dict[str, Any] = {"max_sequences": 4, "max_batched_tokens": 1024, "lease": 60.0, "grace": 60.0}
    config = WorkerConfig(model="m", redis=url, served_name=MODEL, ageing=ageing, **(settings | more))
    ready, stop = anyio.Event(), anyio.Event()

    def assemble(config: WorkerConfig) -> Any:
        assembly = simulated_assembly(config, step_seconds=0, num_blocks=num_blocks)
        launch = assembly.engine._runner.launch

        def held(iteration: Iteration) -> Any:
            if iteration.preempted:
                watched.displaced.set()
                watched.going_on.wait(120)
                watched.in_no_hurry.clear()
            if watched.displaced.is_set():
                watched.in_no_hurry.wait(0.1)
            return launch(iteration)

        assembly.engine._runner = SimpleNamespace(launch=held)
        return assembly

    async def serve() -> None:
        await run_worker(
            config, assemble=assemble, observe=watched.observe, on_ready=lambda _: ready.set(), stop=stop
        )

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        await ready.wait()
        yield
        stop.set()


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(redis_url, model=MODEL) as client:
        yield client


def state_of(client: redis.Redis, request_id: str) -> dict[str, str]:
    state: Any = client.hgetall(KEYS.request(request_id))
    return {name.decode(): value.decode() for name, value in state.items()}


def arrival_of(state: dict[str, str]) -> int:
    return int(state["claimed"].partition("/")[2].partition("-")[0])


async def keep_asking(client: AsyncClient, ended: anyio.Event, names: list[str]) -> None:
    while not ended.is_set():
        handle = await client.submit("high ", max_tokens=12, priority="high")
        names.append(handle.id)
        await handle.result()


async def test_a_running_low_request_goes_on_while_eight_clients_keep_sending_high_ones(
    redis_url: str, client: AsyncClient
) -> None:
    watched = Watched()
    async with simulated_worker(redis_url, watched, num_blocks=200, ageing=3600):
        low = await client.submit("low ", max_tokens=64, priority="low")
        await eventually(lambda: len(watched.iterations_of(low.id)) > 0)
        ended, names = anyio.Event(), list[str]()
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(keep_asking, client, ended, names)
            result = await low.result()
            ended.set()
    assert result.finish_reason == "length"
    assert watched.preempted == []
    iterations = watched.iterations_of(low.id)
    assert iterations == list(range(iterations[0], iterations[0] + len(iterations)))


async def test_a_low_request_goes_before_all_high_ones_that_come_two_ageing_times_later(
    redis_url: str, redis_client: redis.Redis, client: AsyncClient
) -> None:
    ageing = 0.25
    watched = Watched()
    async with simulated_worker(redis_url, watched, num_blocks=200, ageing=ageing):
        ended, names = anyio.Event(), list[str]()
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(keep_asking, client, ended, names)
            await eventually(lambda: len(names) > 12)
            low = await client.submit("low ", max_tokens=64, priority="low")
            await low.result()
            ended.set()
    assert watched.preempted == []
    state = state_of(redis_client, low.id)
    due = arrival_of(state) + round(2 * ageing * 1000)
    for name in names:
        other = state_of(redis_client, name)
        if arrival_of(other) > due:
            assert int(other["started"]) >= int(state["started"])


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to wait before another worker is asked."""
    monkeypatch.setattr(displaced, "SOON", 1e-6)


SAMPLING: dict[str, Any] = {"max_tokens": 200, "temperature": 0.7, "seed": 5, "logprobs": 2}


@pytest.mark.usefixtures("at_once")
async def test_a_displaced_request_goes_on_at_a_worker_that_has_room(
    redis_url: str, redis_client: redis.Redis, client: AsyncClient
) -> None:
    full, idle = Watched(), Watched()
    async with simulated_worker(redis_url, full, num_blocks=34, ageing=3600):
        low = await client.submit(LONG_PROMPT, priority="low", **SAMPLING)
        await eventually(lambda: len(full.iterations_of(low.id)) > 5)
        high = await client.submit(OTHER_PROMPT, max_tokens=200, priority="high")
        await eventually(full.displaced.is_set)
        async with simulated_worker(redis_url, idle, num_blocks=34, ageing=3600):
            channel = KEYS.control(MODEL)
            await eventually(lambda: redis_client.pubsub_numsub(channel)[0][1] == 2)
            full.going_on.set()
            await eventually(lambda: len(idle.iterations_of(low.id)) > 0)
            full.in_no_hurry.set()
            result, other = await low.result(), await high.result()
    assert full.preempted == [low.id]
    assert not idle.iterations_of(high.id)
    expected = uninterrupted(make_request(id=low.id, model=MODEL, prompt=LONG_PROMPT, **SAMPLING))
    assert (result.tokens, result.text) == (expected.tokens, expected.text)
    assert result.logprobs == expected.logprobs
    assert len(other.tokens) == 200
    # A hand-over is no attempt.
    state = state_of(redis_client, low.id)
    assert (state["epoch"], state["attempts"]) == ("2", "1")


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("misled", [False, True])
async def test_a_displaced_request_waits_where_it_is_when_nobody_has_room(
    redis_url: str, redis_client: redis.Redis, client: AsyncClient, misled: bool
) -> None:
    """Also when it is told again and again that somebody has: it is given back once, not for ever."""
    watched = Watched()
    watched.going_on.set()
    async with simulated_worker(redis_url, watched, num_blocks=34, ageing=3600, lease=0.6):
        low = await client.submit(LONG_PROMPT, priority="low", **SAMPLING)
        await eventually(lambda: len(watched.iterations_of(low.id)) > 5)
        high = await client.submit(OTHER_PROMPT, max_tokens=30, priority="high")
        await eventually(lambda: watched.preempted == [low.id])
        if misled:
            channel = redis_client.pubsub(ignore_subscribe_messages=True)
            channel.subscribe(KEYS.control(MODEL))
            forged = b"\x81\xa8room_for" + bytes([0xD9, len(low.id)]) + low.id.encode()
            while not watched.steps[-1].finished:
                redis_client.publish(KEYS.control(MODEL), forged)
                await anyio.sleep(0.02)
            channel.close()
        watched.in_no_hurry.set()
        await high.result()
        result = await low.result()
    expected = uninterrupted(make_request(id=low.id, model=MODEL, prompt=LONG_PROMPT, **SAMPLING))
    assert (result.tokens, result.text) == (expected.tokens, expected.text)
    state = state_of(redis_client, low.id)
    assert (state["epoch"], state["attempts"]) == ("2" if misled else "1", "1")
