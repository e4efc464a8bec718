"""A Redis Cluster whose primary dies in mid-stream: its replica goes on, and everything with it."""

from pathlib import Path

import anyio
import pytest
from counting_worker import MODEL, CountingEngine, CountingWorker, settings, until
from redis_cluster import three_masters
from redis_servers import BINARIES, Kind

from headrace.clients import AsyncClient, Delta, Done
from headrace.clients.protocol import Keys
from headrace.worker.broker import open_broker

pytestmark = pytest.mark.anyio
KEYS = Keys()


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(BINARIES))
@pytest.mark.parametrize("loses", ["the request", "the queue"])
async def test_a_primary_that_dies_is_a_pause(kind: Kind, loses: str, tmp_path: Path) -> None:
    with three_masters(kind, tmp_path, node_timeout_ms=2000) as cluster:
        victim = cluster.owner(KEYS.queue(MODEL, "normal", 0))
        names = [f"r{number}" for number in range(100)]
        name = next(
            name
            for name in names
            if (cluster.owner(KEYS.request(name)) is victim) is (loses == "the request")
        )
        if loses == "the request":
            victim = cluster.owner(KEYS.request(name))
        with cluster.replica_of(victim) as replica:
            async with (
                AsyncClient(cluster.url, model=MODEL, patience=60) as client,
                open_broker(settings(cluster.url, lease=60)) as broker,
                anyio.create_task_group() as tasks,
            ):
                worker = CountingWorker(broker, CountingEngine(pause_at=10))
                tasks.start_soon(worker.serve)
                handle = await client.submit("p", id=name, max_tokens=40)
                seen: list[int] = []
                ends: list[Done] = []

                async def follow() -> None:
                    async for event in handle:
                        if isinstance(event, Delta):
                            seen.extend(event.tokens)
                        else:
                            ends.append(event)

                tasks.start_soon(follow)
                await until(lambda: len(seen) == 10)
                with replica.connect() as copy, victim.connect() as original:
                    await until(
                        lambda: (
                            copy.info("replication")["slave_repl_offset"]
                            >= original.info("replication")["master_repl_offset"]
                        )
                    )
                victim.kill()
                worker.engine.pause_at = None
                await until(lambda: bool(ends), within=90)
                assert seen == list(range(40))
                later = await client.submit("p", max_tokens=5)
                with anyio.fail_after(60):
                    assert (await later.result()).tokens == list(range(5))
                await until(lambda: broker.num_owned == 0, within=60)
                assert broker.counters.lost_claims == 0
                tasks.cancel_scope.cancel()
            with replica.connect() as copy:
                assert copy.info("replication")["role"] == "master"
