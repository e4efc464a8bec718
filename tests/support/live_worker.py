"""A real worker on a tiny model, in this process, checked for leaks when it stops."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from headrace.worker.app import run_worker
from headrace.worker.assembly import Assembly
from headrace.worker.config import WorkerConfig
from headrace.worker.serve import Observer

MODEL = "tiny"


@asynccontextmanager
async def live_worker(
    url: str, folder: Path, *, observe: Observer | None = None, **settings: Any
) -> AsyncIterator[Assembly]:
    """Serve ``folder`` as the model ``tiny`` until the block ends; then drain."""
    defaults: dict[str, Any] = {
        "dtype": "float32",
        "device": "cpu",
        "kv_cache_memory": "1MiB",
        "grace": 30.0,
        "max_sequences": 8,
        "max_batched_tokens": 64,
    }
    config = WorkerConfig(model=str(folder), redis=url, served_name=MODEL, **(defaults | settings))
    ready, stop = anyio.Event(), anyio.Event()
    assemblies: list[Assembly] = []

    def on_ready(assembly: Assembly) -> None:
        assemblies.append(assembly)
        ready.set()

    async def serve() -> None:
        await run_worker(config, observe=observe, on_ready=on_ready, stop=stop)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        await ready.wait()
        yield assemblies[0]
        stop.set()
    engine = assemblies[0].engine
    engine.check()
    if not engine.status.running + engine.status.waiting:
        assert engine.status.blocks_free == engine.status.blocks_total, "blocks leaked"
