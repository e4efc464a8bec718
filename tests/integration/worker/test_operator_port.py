"""What a worker tells operators over HTTP, from its start to its end."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import httpx
import pytest
from live_worker import MODEL
from prometheus_client.parser import text_string_to_metric_families
from redis_servers import RedisServer, free_port
from served_model import Reference
from waiting import eventually

from headrace.clients import AsyncClient
from headrace.worker.app import run_worker
from headrace.worker.assembly import Assembly, assemble
from headrace.worker.config import WorkerConfig

pytestmark = pytest.mark.anyio


async def test_probes_and_metrics_from_loading_to_draining(
    private_server: RedisServer, reference: Reference
) -> None:
    port = free_port()
    config = WorkerConfig(
        model=str(reference.folder),
        redis=private_server.url,
        served_name=MODEL,
        dtype="float32",
        kv_cache_memory="1MiB",
        max_sequences=1,
        lease=1.0,
        redis_timeout=0.5,
        metrics_port=port,
    )
    load, stop = threading.Event(), anyio.Event()
    pause = 0.05

    def when_allowed(config: WorkerConfig) -> Assembly:
        assert load.wait(60)
        return assemble(config)

    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http,
        AsyncClient(private_server.url, model=MODEL) as client,
        anyio.create_task_group() as tasks,
    ):

        async def answer(path: str) -> tuple[int, str]:
            reply = await http.get(path)
            return reply.status_code, reply.json()["status"]

        async def says(path: str, status: int, text: str) -> bool:
            try:
                return await answer(path) == (status, text)
            except httpx.ConnectError:
                return False

        async def metric(name: str, **labels: str) -> float | None:
            families = text_string_to_metric_families((await http.get("/metrics")).text)
            samples = [sample for family in families for sample in family.samples]
            found = [one.value for one in samples if one.name == name and one.labels == labels]
            return found[0] if found else None

        async def wait_for(check: Callable[..., Any], *arguments: Any) -> None:
            await eventually(partial(check, *arguments))

        def observe(*_: object) -> None:
            time.sleep(pause)

        serve = partial(run_worker, config, assemble=when_allowed, observe=observe, stop=stop)
        tasks.start_soon(serve)
        await wait_for(says, "/readyz", 503, "loading")
        assert await answer("/healthz") == (200, "alive")
        load.set()
        await wait_for(says, "/readyz", 200, "ready")

        private_server.pause()
        await wait_for(says, "/readyz", 503, "no_redis")
        assert await answer("/healthz") == (200, "alive"), "a restart would not bring Redis back"
        private_server.resume()
        await wait_for(says, "/readyz", 200, "ready")

        await client.submit("the mill", max_tokens=200, ignore_eos=True)
        await eventually(lambda: metric("headrace_running"))
        for _ in range(3):
            await client.submit("the mill", max_tokens=1, priority="low")
        queue = {"model": MODEL, "priority": "low"}
        await eventually(partial(metric, "headrace_queue_oldest_seconds", **queue))
        assert await metric("headrace_queue_waiting", **queue) == 3
        assert await metric("headrace_queue_waiting", model=MODEL, priority="high") == 0
        assert await metric("headrace_requests_finished_total", reason="error") == 0

        stop.set()
        await wait_for(says, "/readyz", 503, "draining")
        pause = 0.0
