"""Three workers replaced one after the other under load."""

import time
from functools import partial
from pathlib import Path

import anyio
import pytest
from redis_servers import RedisServer
from simulated_model import MODEL, uninterrupted
from waiting import eventually
from worker_processes import WorkerProcess, worker_processes

from headrace.clients import AsyncClient, Delta
from headrace.clients.protocol import make_request

pytestmark = pytest.mark.anyio
LEASE = 120.0
"""Seconds: who had to wait for a lease to run out would be noticed."""


@pytest.fixture
def redis_server(_shared_servers: dict[str, RedisServer]) -> RedisServer:
    """One kind is enough here."""
    server = _shared_servers["redis"]
    with server.connect() as client:
        client.flushall()
    return server


async def test_nothing_is_lost_repeated_or_kept_waiting(redis_server: RedisServer, tmp_path: Path) -> None:
    settings = {
        "redis": redis_server.url,
        "lease": LEASE,
        "grace": 0.2,
        "max_sequences": 6,
        "max_batched_tokens": 128,
    }
    silences: dict[str, float] = {}
    wrong: list[str] = []
    handed_over = 0
    restarting = True

    async def ask(client: AsyncClient, number: int) -> None:
        nonlocal handed_over
        fields = {"max_tokens": 60, "temperature": 0.7 * (number % 2), "seed": number}
        request = make_request(id=f"r{number}", model=MODEL, prompt=f"request {number} ", **fields)
        handle = await client.submit(request.prompt, id=request.id, **fields)
        tokens: list[int] = []
        last, longest = time.monotonic(), 0.0
        async for event in handle:
            now = time.monotonic()
            last, longest = now, max(longest, now - last)
            if isinstance(event, Delta):
                if event.seq != len(tokens):
                    wrong.append(f"{request.id}: {event.seq} after {len(tokens)}")
                tokens += event.tokens
        status = await handle.status()
        if tokens != uninterrupted(request).tokens or status.attempts != 1:
            wrong.append(f"{request.id}: {status}")
        with redis_server.connect() as server:
            handed_over += int(server.hget(f"headrace:request:{{{request.id}}}", "epoch") or 0) > 1
        silences[request.id] = longest

    async with (
        worker_processes("simulated", tmp_path) as workers,
        AsyncClient(redis_server.url, model=MODEL) as client,
    ):
        running = [await workers.start(settings, step_seconds=0.02) for _ in range(3)]
        longest_restart = 0.0

        async def keep_busy(first: int) -> None:
            number = first
            while restarting:
                await ask(client, number)
                number += 12

        async def is_serving(worker: WorkerProcess) -> bool:
            with redis_server.connect() as server:
                return bool(server.exists(f"headrace:worker:{{{MODEL}}}:{worker.name}"))

        with anyio.fail_after(120):
            async with anyio.create_task_group() as load:
                for first in range(12):
                    load.start_soon(keep_busy, first)
                for old in running:
                    await eventually(partial(is_serving, old))
                    before = len(silences)
                    started = time.monotonic()
                    assert await old.stop() == 0
                    replacement = await workers.start(settings, step_seconds=0.02)
                    await eventually(partial(is_serving, replacement))
                    longest_restart = max(longest_restart, time.monotonic() - started)
                    await eventually(lambda before=before: len(silences) >= before + 4)
                restarting = False
        for worker in workers.alive:
            assert await worker.stop() == 0
    assert wrong == []
    assert handed_over > 0
    assert max(silences.values()) < longest_restart + LEASE / 4
