"""Memory of worker and Redis under load for a long time: a simulated model, real worker process, real server.

    python benchmarks/soak.py --minutes 30 --rate 10

Prints a sample every so many seconds, and at the end the slope of each series after the warm-up:
in steady state (results expire after ``--result-ttl``) all of them should be flat.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

import redis
from redis_servers import BINARIES, Kind, RedisServer, running
from simulated_model import MODEL
from worker_processes import WorkerProcess, worker_processes

from headrace.clients import AsyncClient

_COLUMNS = ("worker MiB", "redis MiB", "redis RSS MiB", "client MiB", "keys", "ended", "tokens")
_WARM_UP = 0.25
"""Share of the samples that the slopes leave out."""


def _resident(pid: int | str) -> float:
    """MiB of memory that a process really uses."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def slope(samples: list[tuple[float, float]]) -> float:
    """Least-squares change per unit of the first coordinate."""
    count = len(samples)
    mean_x = sum(x for x, _ in samples) / count
    mean_y = sum(y for _, y in samples) / count
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread if spread else 0.0


class Load:
    """Requests at a steady rate, a tenth of them followed, some cancelled."""

    def __init__(self, client: AsyncClient, rate: float, seed: int) -> None:
        self.ended: Counter[str] = Counter()
        self.tokens = 0
        self._client = client
        self._rate = rate
        self._random = random.Random(seed)
        self._following: set[asyncio.Task[None]] = set()

    async def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            task = asyncio.create_task(self._request())
            self._following.add(task)
            task.add_done_callback(self._following.discard)
            await asyncio.sleep(self._random.expovariate(self._rate))
        await asyncio.gather(*self._following)

    async def _request(self) -> None:
        dice = self._random
        length = dice.randint(1, 80)
        prompt = "".join(dice.choices("abcdefgh ", k=dice.randint(1, 200)))
        handle = await self._client.submit(
            prompt,
            max_tokens=length,
            temperature=dice.choice([0.0, 1.0]),
            stop=dice.choice([[], ["abc"]]),
            logprobs=dice.choice([None, None, 2]),
            tenant=dice.choice([None, "a", "b", "c"]),
            priority=dice.choice(["high", "normal", "low"]),
        )
        if dice.random() < 0.05:
            await handle.cancel()
        result = await handle.result()
        self.ended[result.finish_reason] += 1
        self.tokens += len(result.tokens)


async def soak(minutes: float, rate: float, result_ttl: float, every: float, kind: Kind, seed: int) -> None:
    with tempfile.TemporaryDirectory() as name, running(RedisServer(kind, Path(name) / "redis")) as server:
        async with (
            worker_processes("simulated", Path(name)) as workers,
            AsyncClient(server.url, model=MODEL) as client,
        ):
            settings = {"redis": server.url, "result_ttl": result_ttl, "max_sequences": 32}
            worker = await workers.start(settings, step_seconds=0.01, num_blocks=2048, verified=False)
            load = Load(client, rate, seed)
            loading = asyncio.create_task(load.run(minutes * 60))
            series = await _sample(server, worker, load, loading, every)
            await loading
            status = await worker.stop()
    print(f"ended: {dict(load.ended)}, tokens: {load.tokens}, worker's exit status: {status}")
    kept = series[int(len(series) * _WARM_UP) :]
    for column, label in enumerate(_COLUMNS[:5]):
        points = [(at / 60, values[column]) for at, values in kept]
        per_minute = slope(points)
        first, last = points[0][1], points[-1][1]
        print(f"{label}: {first:.2f} -> {last:.2f}, slope {per_minute:+.4f} a minute")


async def _sample(
    server: RedisServer, worker: WorkerProcess, load: Load, loading: "asyncio.Task[None]", every: float
) -> list[tuple[float, list[float]]]:
    start = time.monotonic()
    series: list[tuple[float, list[float]]] = []
    print("   min  " + "  ".join(f"{label:>13}" for label in _COLUMNS))
    with server.connect() as direct:
        while not loading.done():
            await asyncio.wait([loading], timeout=every)
            info = direct.info("memory")
            mib = 1 << 20
            values = [
                _resident(worker.pid),
                info["used_memory"] / mib,
                info["used_memory_rss"] / mib,
                _resident("self"),
                float(direct.dbsize()),
                float(load.ended.total()),
                float(load.tokens),
            ]
            at = time.monotonic() - start
            series.append((at, values))
            print(f"{at / 60:6.2f}  " + "  ".join(f"{value:13.2f}" for value in values), flush=True)
    return series


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--rate", type=float, default=10, help="requests a second")
    parser.add_argument("--result-ttl", type=float, default=60, help="seconds")
    parser.add_argument("--every", type=float, default=20, help="seconds between samples")
    parser.add_argument("--server", choices=list(BINARIES), default=next(iter(BINARIES)))
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, redis-py {redis.__version__}, {arguments.server}")
    asyncio.run(
        soak(
            arguments.minutes,
            arguments.rate,
            arguments.result_ttl,
            arguments.every,
            arguments.server,
            arguments.seed,
        )
    )


if __name__ == "__main__":
    main()
