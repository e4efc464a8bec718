"""A worker told to stop the moment it takes requests hands them back, and says that all is well."""

from pathlib import Path

import anyio
import pytest
from redis_servers import RedisServer
from simulated_model import MODEL, uninterrupted
from worker_processes import worker_processes

from headrace.clients import AsyncClient
from headrace.clients.protocol import make_request

pytestmark = pytest.mark.anyio


async def test_a_signal_at_the_first_moment_drains(private_server: RedisServer, tmp_path: Path) -> None:
    settings = {"redis": private_server.url, "lease": 60.0, "grace": 0.0}
    request = make_request(id="a", model=MODEL, prompt="abc", max_tokens=100)
    async with (
        AsyncClient(private_server.url, model=MODEL) as client,
        worker_processes("simulated", tmp_path) as workers,
    ):
        handle = await client.submit(**request.model_dump(exclude_defaults=True))
        for _ in range(10):
            worker = await workers.start(settings, step_seconds=0.01)
            assert await worker.stop() == 0, workers.log.read_text()
        worker = await workers.start(settings, step_seconds=0.0)
        with anyio.fail_after(30):  # much less than a lease: nothing was left behind
            assert (await handle.result()).tokens == uninterrupted(request).tokens
        assert await worker.stop() == 0
