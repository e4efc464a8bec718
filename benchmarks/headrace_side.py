"""Headrace's side of ``benchmarks.beside_vllm``: processes of Valkey, a worker and a client, all timed.

Reads one JSON object a line, ``{"prompts": [[...], ...], "output": n}``, answers each with the seconds from
the first submission until the client has the last result, and ends with its input.
"""

import json
import multiprocessing
import sys
import time
from importlib.metadata import version
from multiprocessing.synchronize import Event

import anyio

from headrace.clients import AsyncClient
from headrace.worker.app import run_worker
from headrace.worker.config import WorkerConfig
from headrace.worker.embedded import embedded_valkey
from headrace.worker.process import prepare_process

LOADING_SECONDS = 600


def work(config: WorkerConfig, ready: Event) -> None:
    """A worker's process."""
    prepare_process()

    async def serve() -> None:
        await run_worker(config, on_ready=lambda _: ready.set(), stop=anyio.Event())

    anyio.run(serve)


async def ask(config: WorkerConfig) -> None:
    async with AsyncClient(config.redis, model=config.served_name or "benchmark") as client:
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            job = json.loads(line)
            begin = time.perf_counter()
            tokens = await _generate(client, job["prompts"], job["output"])
            answer({"seconds": time.perf_counter() - begin, "tokens": tokens})


async def _generate(client: AsyncClient, prompts: list[list[int]], output: int) -> list[list[int]]:
    results: list[list[int]] = [[] for _ in prompts]

    async def ask(index: int) -> None:
        handle = await client.submit(
            tokens=prompts[index], max_tokens=output, temperature=0.0, ignore_eos=True
        )
        results[index] = (await handle.result()).tokens

    async with anyio.create_task_group() as tasks:
        for index in range(len(prompts)):
            tasks.start_soon(ask, index)
    return results


def answer(value: object) -> None:
    print(json.dumps(value), flush=True)


def main() -> None:
    model, dtype, sequences, length = sys.argv[1:]
    with embedded_valkey() as url:
        config = WorkerConfig(
            model=model,
            redis=url,
            served_name="benchmark",
            dtype=dtype,  # pyright: ignore[reportArgumentType]  # checked there
            kv_cache_memory="1GiB",
            max_sequences=int(sequences),
            max_model_len=int(length),
        )
        spawning = multiprocessing.get_context("spawn")
        ready = spawning.Event()
        worker = spawning.Process(target=work, args=(config, ready), daemon=True)
        worker.start()
        if not ready.wait(LOADING_SECONDS):
            raise TimeoutError("the worker does not begin")
        answer({"version": version("headrace")})
        anyio.run(ask, config)
        worker.terminate()
        worker.join()


if __name__ == "__main__":
    main()
