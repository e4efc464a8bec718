"""``python -m tests.chaos.fuzz_intake --entries 1000000``: hostile queue entries, good requests among them.

Every good request must be answered in full, and the worker must live.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))

import redis
from redis_servers import BINARIES, Kind, RedisServer, immortal_keys, running
from simulated_model import MODEL, uninterrupted
from waiting import eventually
from worker_processes import worker_processes

from headrace.clients import AsyncClient
from headrace.clients.protocol import LANES, PRIORITIES, Keys, make_request

from .hostile import hostile_entry

_BATCH = 200
_MOST_QUEUED = 2000
_KEYS = Keys()


async def fuzz(entries: int, seed: int, kind: Kind, folder: Path) -> tuple[int, float]:
    """Good requests answered, and seconds. Raises ``AssertionError`` for anything that went wrong."""
    dice = random.Random(seed)
    start = time.monotonic()
    with running(RedisServer(kind, folder / "redis")) as server, server.connect() as direct:
        async with (
            worker_processes("simulated", folder) as workers,
            AsyncClient(server.url, model=MODEL, queue_limit=None) as client,
        ):
            # Many at a time: the round trips are what takes long.
            batch = {"max_sequences": 512, "max_batched_tokens": 8192}
            settings = {"redis": server.url, "result_ttl": 20.0, **batch}
            worker = await workers.start(
                settings, step_seconds=0.0, num_blocks=1024, verified=False, log_level="critical"
            )
            answered = 0
            for first in range(0, entries, _BATCH):
                count = min(_BATCH, entries - first)
                _enqueue(direct, [hostile_entry(dice, first + n, MODEL) for n in range(count)], dice)
                request = make_request(id=f"good-{first}", model=MODEL, prompt="abc d", max_tokens=5)
                handle = await client.submit(**request.model_dump(exclude_defaults=True))
                result = await asyncio.wait_for(handle.result(), 300)
                assert result.tokens == uninterrupted(request).tokens, request.id
                assert worker.alive, workers.log.read_text()[-3000:]
                answered += 1
                await eventually(lambda: _queued(direct) <= _MOST_QUEUED, 300)
                if first // _BATCH % 100 == 99:
                    print(f"{first + count} entries, {time.monotonic() - start:.0f} s", flush=True)
            await eventually(lambda: _queued(direct) == 0, 600)
            assert worker.alive
            assert immortal_keys(direct) == []
            assert direct.xlen(_KEYS.dead(MODEL)) <= 2000
            assert await worker.stop() == 0, workers.log.read_text()[-3000:]
    return answered, time.monotonic() - start


def _enqueue(direct: redis.Redis, entries: list[dict[bytes, bytes]], dice: random.Random) -> None:
    with direct.pipeline(transaction=False) as pipeline:
        for entry in entries:
            queue = _KEYS.queue(MODEL, dice.choice(PRIORITIES), dice.randrange(LANES))
            fields: Any = entry or {b"": b""}
            pipeline.xadd(queue, fields)
        pipeline.execute()


def _queued(direct: redis.Redis) -> int:
    with direct.pipeline(transaction=False) as pipeline:
        for name in _KEYS.queues(MODEL):
            pipeline.xlen(name)
        return sum(pipeline.execute())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.fuzz_intake")
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--server", choices=list(BINARIES), default=next(iter(BINARIES)))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        answered, seconds = asyncio.run(fuzz(arguments.entries, arguments.seed, arguments.server, Path(name)))
    print(
        f"seed {arguments.seed} ({arguments.server}): {arguments.entries} hostile entries, "
        f"{answered} of {answered} good requests answered, worker alive, {seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
