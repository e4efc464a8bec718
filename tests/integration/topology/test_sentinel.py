"""Client and worker find the master through Sentinel, also when it is another than before."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest
import redis
from counting_worker import MODEL, CountingEngine, CountingWorker, settings, until
from redis_servers import BINARIES, Kind, RedisServer, immortal_keys, running

from headrace.clients import AsyncClient, Delta, Done, Unavailable
from headrace.worker.broker import open_broker

pytestmark = pytest.mark.anyio


class Watched:
    """A master, its replica, and a Sentinel that watches them."""

    def __init__(self, master: RedisServer, replica: RedisServer, sentinel: RedisServer) -> None:
        self.master, self.replica, self.sentinel = master, replica, sentinel

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:1,127.0.0.1:{self.sentinel.port}/main/0"


@pytest.fixture(params=list(BINARIES))
def watched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched]:
    kind = request.param
    with ExitStack() as stack:
        master = stack.enter_context(running(RedisServer(kind, tmp_path / "master")))
        follows = {"replicaof": f"127.0.0.1 {master.port}", "repl-diskless-sync-delay": "0"}
        replica = stack.enter_context(running(RedisServer(kind, tmp_path / "replica", options=follows)))
        (tmp_path / "sentinel").mkdir()
        sentinel = stack.enter_context(running(RedisServer(kind, tmp_path / "sentinel", sentinel=True)))
        with sentinel.connect() as client:
            client.execute_command("SENTINEL", "MONITOR", "main", "127.0.0.1", master.port, 1)
            for option, value in (("down-after-milliseconds", 500), ("failover-timeout", 3000)):
                client.execute_command("SENTINEL", "SET", "main", option, value)
        yield Watched(master, replica, sentinel)


def role_of(server: RedisServer) -> str:
    """Empty while it cuts its connections, as it does when its role changes."""
    try:
        with server.connect() as client:
            return client.info("replication")["role"]
    except redis.ConnectionError:
        return ""


async def test_a_failover_is_a_pause(watched: Watched) -> None:
    with watched.replica.connect() as replica, watched.sentinel.connect() as sentinel:
        await until(lambda: replica.info("replication")["master_link_status"] == "up")
        await until(lambda: sentinel.sentinel_masters()["main"]["num-slaves"] == 1)
    patient = settings(watched.url, lease=60)
    async with (
        AsyncClient(watched.url, model=MODEL, patience=60) as client,
        open_broker(patient) as broker,
        anyio.create_task_group() as tasks,
    ):
        worker = CountingWorker(broker, CountingEngine(pause_at=10))
        tasks.start_soon(worker.serve)
        handle = await client.submit("p", max_tokens=40)
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
        with watched.replica.connect() as replica:
            await until(lambda: replica.hget(f"headrace:request:{{{handle.id}}}", "seq") == b"10")
        watched.master.kill()
        worker.engine.pause_at = None
        await until(lambda: bool(ends), within=60)
        assert seen == list(range(40))
        later = await client.submit("p", max_tokens=5)
        assert (await later.result()).tokens == list(range(5))
        assert broker.counters.retries["connection"] > 0
        tasks.cancel_scope.cancel()
    with watched.replica.connect() as replica:
        assert replica.info("replication")["role"] == "master"
        assert immortal_keys(replica) == []


@pytest.mark.slow
async def test_a_master_that_becomes_a_replica_is_left_for_the_new_one(watched: Watched) -> None:
    """Both stay up, as when an operator moves the master: writes are refused, not connections."""
    with watched.replica.connect() as replica, watched.sentinel.connect() as sentinel:
        await until(lambda: replica.info("replication")["master_link_status"] == "up")
        await until(lambda: sentinel.sentinel_masters()["main"]["num-slaves"] == 1)
        async with (
            AsyncClient(watched.url, model=MODEL, patience=60) as client,
            open_broker(settings(watched.url, lease=60)) as broker,
            anyio.create_task_group() as tasks,
        ):
            worker = CountingWorker(broker, CountingEngine(pause_at=10))
            tasks.start_soon(worker.serve)
            handle = await client.submit("p", max_tokens=40)
            key = f"headrace:request:{{{handle.id}}}"
            await until(lambda: replica.hget(key, "seq") == b"10")
            sentinel.execute_command("SENTINEL", "FAILOVER", "main")
            # What the old master accepts between the two is lost: replication is asynchronous.
            await until(lambda: role_of(watched.replica) == "master", within=60)
            await until(lambda: role_of(watched.master) == "slave", within=60)
            worker.engine.pause_at = None
            with anyio.fail_after(60):
                assert (await handle.result()).tokens == list(range(40))
            tasks.cancel_scope.cancel()
    with watched.replica.connect() as replica:
        assert replica.hget(key, "status") == b"finished"
        assert immortal_keys(replica) == []


@pytest.mark.parametrize("kind", list(BINARIES))
async def test_sentinels_and_servers_may_have_passwords_of_their_own(kind: Kind, tmp_path: Path) -> None:
    closed = {"requirepass": "of-the-server"}
    watching = {"requirepass": "of-the-sentinel"}
    with (
        running(RedisServer(kind, tmp_path / "master", options=closed)) as master,
        running(RedisServer(kind, tmp_path / "sentinel", options=watching, sentinel=True)) as sentinel,
        sentinel.connect() as client,
    ):
        client.execute_command("SENTINEL", "MONITOR", "main", "127.0.0.1", master.port, 1)
        client.execute_command("SENTINEL", "SET", "main", "auth-pass", "of-the-server")
        place = f"127.0.0.1:{sentinel.port}/main/0"
        await assert_served(f"redis+sentinel://:of-the-server@{place}?sentinel_password=of-the-sentinel")
        for wrong in (
            f"redis+sentinel://:of-the-server@{place}",
            f"redis+sentinel://{place}?sentinel_password=of-the-sentinel",
        ):
            async with AsyncClient(wrong, model=MODEL, patience=1) as stranger:
                with pytest.raises(Unavailable) as refusal:
                    await stranger.submit("p")
                assert "of-the" not in str(refusal.value)


async def assert_served(url: str) -> None:
    async with (
        AsyncClient(url, model=MODEL) as client,
        open_broker(settings(url)) as broker,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(CountingWorker(broker).serve)
        handle = await client.submit("p", max_tokens=10)
        with anyio.fail_after(30):
            assert (await handle.result()).tokens == list(range(10))
        tasks.cancel_scope.cancel()
