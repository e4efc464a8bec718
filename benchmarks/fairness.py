"""Who waits how long: three workers' brokers on a real Valkey, over engines that only count.

    python -m benchmarks.fairness [--server valkey]

Each worker runs eight sequences at a time. Three questions: how long one tenant's single request waits behind
another's thousand, with lanes and without; how many tokens two tenants get whose requests differ in length;
and when a low request gets its turn while high ones never stop coming.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import redis

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from counting_worker import CountingEngine, CountingWorker, enqueue, settings, until
from redis_servers import BINARIES, RedisServer, running

from headrace.worker.broker import open_broker

WORKERS, ROOM, TOKENS = 3, 8, 20


@asynccontextmanager
async def fleet(url: str, ageing: float = 30.0) -> AsyncIterator[list[CountingWorker]]:
    async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        workers: list[CountingWorker] = []
        for number in range(WORKERS):
            config = settings(url, f"w{number}", lease=30, ageing=ageing)
            broker = await stack.enter_async_context(open_broker(config))
            workers.append(CountingWorker(broker, CountingEngine(capacity=ROOM)))
            tasks.start_soon(workers[-1].serve)
        yield workers
        tasks.cancel_scope.cancel()


def waits(workers: list[CountingWorker]) -> dict[str, float]:
    """Seconds in the queue of each request that has been claimed."""
    return {claim.request.id: claim.waited_ms / 1000 for worker in workers for claim in worker.seen}


async def one_behind_a_thousand(client: redis.Redis, url: str, *, lanes: bool) -> str:
    client.flushall()
    for number in range(1000):
        enqueue(client, f"many{number}", lane=1, max_tokens=TOKENS)
    async with fleet(url) as workers:
        await until(lambda: len(waits(workers)) > 100, within=120)
        before = len(waits(workers))
        enqueue(client, "one", lane=2 if lanes else 1, max_tokens=TOKENS)
        await until(lambda: "one" in waits(workers), within=300)
        after = len(waits(workers))
        await until(lambda: len(waits(workers)) == 1001, within=300)
        longest = max(waits(workers).values())
    wait = waits(workers)["one"]
    return f"{wait:.2f} s, after {after - before - 1} others; the last of the thousand {longest:.1f} s"


async def long_against_short(client: redis.Redis, url: str) -> str:
    client.flushall()
    lengths = {1: 80, 2: 10}
    for lane, length in lengths.items():
        for number in range(800 if lane == 2 else 200):
            enqueue(client, f"{lane}-{number}", lane=lane, max_tokens=length)
    async with fleet(url) as workers:
        await until(lambda: len(waits(workers)) > 600, within=300)
        made: Counter[int] = Counter()
        started: Counter[int] = Counter()
        for worker in workers:
            for claim in worker.seen:
                lane = int(claim.request.id.partition("-")[0])
                running = worker.engine.running.get(claim.request.id)
                made[lane] += len(running.tokens) if running else claim.request.max_tokens
                started[lane] += 1
    return f"{made[1]} tokens for {started[1]} requests, and {made[2]} for {started[2]}"


async def low_among_high(client: redis.Redis, url: str, ageing: float, seconds: float) -> str:
    client.flushall()
    number = 0
    async with fleet(url, ageing) as workers:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            backlog = client.xlen("headrace:queue:{m}:high:1") - sum(len(w.engine.running) for w in workers)
            for _ in range(max(0, 60 - int(backlog))):
                enqueue(client, f"high{number}", priority="high", lane=1, max_tokens=TOKENS)
                number += 1
                if number == 100:
                    enqueue(client, "low", priority="low", lane=2, max_tokens=TOKENS)
            if "low" in waits(workers):
                break
            await anyio.sleep(0.02)
        found = waits(workers)
    started = len(found) - ("low" in found)
    if "low" not in found:
        return f"not within {seconds:g} s, while {started} high ones started"
    return f"after {found['low']:.2f} s, while {started} high ones started"


async def run(server: RedisServer) -> None:
    with server.connect() as client:
        print("one request behind another tenant's thousand, with lanes:")
        print("  ", await one_behind_a_thousand(client, server.url, lanes=True))
        print("the same in one lane:")
        print("  ", await one_behind_a_thousand(client, server.url, lanes=False))
        print("two tenants, one with longer outputs:")
        print("  ", await long_against_short(client, server.url))
        for ageing in (1.0, 3.0, 1000.0):
            print(f"low among high, ageing {ageing:g} s:")
            print("  ", await low_among_high(client, server.url, ageing, 10.0))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", choices=list(BINARIES), default=next(iter(BINARIES)))
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        running(RedisServer(options.server, Path(folder))) as server,
    ):
        anyio.run(run, server)


if __name__ == "__main__":
    main()
