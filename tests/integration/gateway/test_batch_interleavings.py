"""Every line of a batch ends in one of its files, whichever gateways die, stand still or go on beside."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import redis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from redis_servers import RedisServer

from headrace.clients.async_client import AsyncClient
from headrace.clients.gateway.access.api_keys import ANYBODY
from headrace.clients.gateway.batches.files import Files
from headrace.clients.gateway.batches.lines import output_line
from headrace.clients.gateway.batches.runner import BatchRunner
from headrace.clients.gateway.batches.store import ENDED, BatchStore
from headrace.clients.gateway.errors import unavailable
from headrace.clients.gateway.operation.metrics import Metrics
from headrace.clients.gateway.redis_keys import GatewayKeys
from headrace.clients.gateway.schedules.schedule import Schedule
from headrace.clients.gateway.settings import GatewaySettings
from headrace.clients.gateway.streams.slots import StreamSlots

NAMESPACE = "interleavings"
"""Not the one of gateways that other tests leave running on the same server, and that would take batches."""


class Killed(Exception):
    """The gateway is no more: it does nothing further."""


class Gateway:
    """One gateway's batches, which are killed (or stand still) at their ``at``-th call of Redis."""

    def __init__(self, world: "World", at: int | None, *, done_first: bool, stands_still: bool) -> None:
        self.world = world
        self.calls = 0
        self.at = at
        self.done_first = done_first
        self.stands_still = stands_still
        self.goes_on = anyio.Event()
        self.still = anyio.Event()
        files = Files(world.settings, self)  # pyright: ignore[reportArgumentType]
        store = BatchStore(world.settings, self, files, self)  # pyright: ignore[reportArgumentType]
        metrics = Metrics(StreamSlots(1))
        self.store, self.files = store, files
        keys = GatewayKeys(NAMESPACE)
        self.schedule = Schedule(self, keys, "batches", limit=9, ttl=600)  # pyright: ignore[reportArgumentType]
        self.batch_runner = BatchRunner(
            world.settings,
            self,  # pyright: ignore[reportArgumentType]
            files,
            store,
            self,  # pyright: ignore[reportArgumentType]
            lambda _batch: Lines(),  # pyright: ignore[reportArgumentType]
            metrics,
        )

    async def call(self, operation: Callable[[Any], Awaitable[Any]]) -> Any:
        self.calls += 1
        self.world.pass_time()
        if self.at is None or self.calls < self.at:
            return await self.world.client.connection.call(operation)
        if self.stands_still:
            self.still.set()
            await self.goes_on.wait()
            return await self.world.client.connection.call(operation)
        if self.done_first and self.calls == self.at:
            await self.world.client.connection.call(operation)
        raise Killed

    async def now(self) -> int:
        return self.world.now

    async def work(self) -> None:
        """Take the batch, others' leases being over, and work on it until its end or one's own."""
        self.world.end_leases()
        try:
            taken = await self.schedule.take(30.0)
            if taken is not None:
                await self.batch_runner.work(taken)
        except* Killed:
            pass


class Lines:
    """Requests of lines: answered, refused, or never answered, as the line's text says."""

    def __init__(self) -> None:
        self.cancelled = anyio.Event()

    def line_id(self, number: int) -> str:
        return f"line{number}"

    async def cancel(self) -> None:
        self.cancelled.set()

    async def cancel_line(self, number: int, line: bytes) -> None:
        del number, line

    async def run(self, number: int, line: bytes) -> tuple[bool, bytes] | None:
        custom_id: str = json.loads(line)["custom_id"]
        kind, _, _ = custom_id.partition("-")
        await anyio.lowlevel.checkpoint()
        if kind == "never":
            await anyio.sleep_forever()
        if kind == "waits":
            await self.cancelled.wait()
            return None
        return kind == "good", output_line(self.line_id(number), custom_id, "r", {})


class World:
    """A server with one batch, and a clock that jumps past its window at a given call."""

    def __init__(self, url: str, server: redis.Redis, closes: int, cancelled: int | None) -> None:
        self.server = server
        self.settings = GatewaySettings(redis=url, namespace=NAMESPACE, batch_window=2)
        self.client = AsyncClient(url, namespace=NAMESPACE)
        self.passed = 0
        self.closes = closes
        self.cancelled = cancelled
        self.batch_id = ""
        self.now = server.time()[0]

    def pass_time(self) -> None:
        self.passed += 1
        if self.passed == self.closes:
            self.now += 25 * 3600
        if self.passed == self.cancelled and self.batch_id:
            self.cancel()

    def cancel(self) -> None:
        key = GatewayKeys(NAMESPACE).batch(self.batch_id)
        if self.server.hget(key, "status") in (b"validating", b"in_progress"):
            self.server.hset(key, mapping={"status": "cancelling", "at:cancelling": self.now})

    def end_leases(self) -> None:
        due = GatewayKeys(NAMESPACE).due("batches")
        for task in self.server.zrange(due, 0, -1):
            self.server.zadd(due, {task: 1})


def read(server: redis.Redis, place: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.hvals(GatewayKeys(NAMESPACE).lines(place))]


crashes = st.tuples(st.integers(1, 25), st.booleans(), st.booleans())


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_RENEW_EVERY", 0.002), ("_STOP_WITHIN", 0.01)):
        monkeypatch.setattr(f"headrace.clients.gateway.batches.runner.{name}", seconds)
    monkeypatch.setattr("headrace.clients.gateway.batches.runner._PAGE", 2)


def test_every_line_ends_in_one_file(redis_server: RedisServer, redis_client: redis.Redis) -> None:
    @settings(
        max_examples=150,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        kinds=st.lists(st.sampled_from(["good", "bad", "waits", "never"]), min_size=1, max_size=6),
        gateways=st.lists(crashes, max_size=4),
        closes=st.integers(1, 60),
        cancelled=st.none() | st.integers(1, 60),
    )
    def examine(
        kinds: list[str], gateways: list[tuple[int, bool, bool]], closes: int, cancelled: int | None
    ) -> None:
        redis_client.flushall()
        anyio.run(scenario, redis_server.url, redis_client, kinds, gateways, closes, cancelled)

    examine()


async def scenario(
    url: str,
    server: redis.Redis,
    kinds: list[str],
    gateways: list[tuple[int, bool, bool]],
    closes: int,
    cancelled: int | None,
) -> None:
    world = World(url, server, closes + 8, None if cancelled is None else cancelled + 8)
    async with world.client:
        names = [f"{kind}-{number}" for number, kind in enumerate(kinds)]
        lines = [line_of(name) for name in names]
        first = Gateway(world, None, done_first=False, stands_still=False)
        file = await first.files.store(ANYBODY, "a.jsonl", "batch", lines)
        batch = await first.store.create(ANYBODY, file, "/v1/completions", "24h", 86400, None)
        world.batch_id = batch.id
        await first.batch_runner.start(ANYBODY, batch)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                asleep: list[Gateway] = []
                for at, done_first, stands_still in gateways:
                    gateway = Gateway(world, at, done_first=done_first, stands_still=stands_still)
                    if stands_still:
                        tasks.start_soon(work_until_still, gateway)
                        await gateway.still.wait()
                        asleep.append(gateway)
                    else:
                        await gateway.work()
                while (ended := await first.store.read(batch.id)) is None or ended.status not in ENDED:
                    await Gateway(world, None, done_first=False, stands_still=False).work()
                for gateway in asleep:
                    gateway.goes_on.set()
        after = await first.store.read(batch.id)
        assert after is not None
        assert (after.status, after.counts) == (ended.status, ended.counts), "an end is the end"
        output, errors = read(server, batch.results.output), read(server, batch.results.errors)
        assert sorted(item["custom_id"] for item in output + errors) == sorted(names)
        assert after.counts == (len(output), len(errors)) == await first.files.counts(batch.results)
        codes = {item["error"]["code"] for item in errors if item["error"]} - {None}
        left = {"completed": set[str](), "expired": {"batch_expired"}, "cancelled": {"batch_cancelled"}}
        assert codes <= left[after.status]
        if after.status == "expired":
            assert codes == {"batch_expired"}
        for some_file, items in ((batch.output_file, output), (batch.error_file, errors)):
            if items:
                assert (await first.files.find(ANYBODY, some_file)).lines == len(names)


async def work_until_still(gateway: Gateway) -> None:
    await gateway.work()
    gateway.still.set()


def line_of(custom_id: str) -> bytes:
    return json.dumps(
        {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": {"model": "m"}}
    ).encode()


def test_too_many(redis_server: RedisServer) -> None:
    """A batch that cannot be begun is none."""

    async def scenario_() -> None:
        with redis_server.connect() as server:
            world = World(redis_server.url, server, 10**9, None)
        async with world.client:
            gateway = Gateway(world, None, done_first=False, stands_still=False)
            file = await gateway.files.store(ANYBODY, "a.jsonl", "batch", [line_of("a")])
            batch = await gateway.store.create(ANYBODY, file, "/v1/completions", "1h", 3600, None)
            gateway.batch_runner._schedule._limit = 0
            with pytest.raises(type(unavailable("", ""))) as caught:
                await gateway.batch_runner.start(ANYBODY, batch)
            assert caught.value.code == "too_many_batches"
            assert await gateway.store.all_of(ANYBODY) == []
            await gateway.files.delete(ANYBODY, file.id)

    anyio.run(scenario_)
