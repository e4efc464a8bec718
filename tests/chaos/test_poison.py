"""A request that kills its worker is given up; those that were served beside it are not."""

import asyncio
import signal
from pathlib import Path

import pytest
from redis_servers import RedisServer
from simulated_model import MODEL, POISON, uninterrupted
from worker_processes import WorkerProcesses, worker_processes

from headrace.clients import AsyncClient
from headrace.clients.protocol import Keys, make_request

pytestmark = pytest.mark.anyio

ATTEMPTS = 4


async def keep_one_running(workers: WorkerProcesses, url: str) -> None:
    settings = {"redis": url, "lease": 0.5, "max_attempts": ATTEMPTS, "max_sequences": 8}
    while True:
        worker = await workers.start(settings, step_seconds=0.01)
        await worker.wait()


async def test_poison_is_given_up_and_takes_no_neighbour_with_it(
    private_server: RedisServer, tmp_path: Path
) -> None:
    requests = [
        make_request(
            id=f"r{number}", model=MODEL, prompt=f"{POISON}0 abc" if number == 3 else "abc", max_tokens=40
        )
        for number in range(7)
    ]
    async with (
        AsyncClient(private_server.url, model=MODEL, patience=60) as client,
        worker_processes("simulated", tmp_path) as workers,
    ):
        # All of them wait, so that one worker takes them into one batch.
        handles = [await client.submit(**request.model_dump(exclude_defaults=True)) for request in requests]
        supervisor = asyncio.create_task(keep_one_running(workers, private_server.url))
        async with asyncio.timeout(120):
            results = [await handle.result() for handle in handles]
        supervisor.cancel()
        ends = [worker.exited.result() for worker in workers.started if not worker.alive]
    for request, result in zip(requests, results, strict=True):
        if request.id == "r3":
            assert result.finish_reason == "error"
            assert result.error is not None
            assert result.error.code == "too_many_attempts"
            assert result.tokens == []
        else:
            assert result.finish_reason == "length", (request.id, result.error)
            assert result.tokens == uninterrupted(request).tokens
    assert ends == [-signal.SIGKILL] * ATTEMPTS
    with private_server.connect() as direct:
        assert direct.xlen(Keys().dead(MODEL)) == 1
