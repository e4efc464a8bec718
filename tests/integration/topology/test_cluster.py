"""Client and worker against a Redis Cluster: requests and models on different nodes, and slots that move."""

import json
from collections.abc import Iterator

import anyio
import httpx
import pytest
from counting_worker import MODEL, CountingEngine, CountingWorker, settings, text_of, until
from gateway_server import running_gateway
from redis_cluster import ThreeMasters, three_masters
from redis_servers import BINARIES, Kind
from waiting import eventually

from headrace.clients import AsyncClient, Delta, Done, QueueFull, UnknownRequest
from headrace.clients.overview import Monitor
from headrace.clients.protocol import Keys, make_request
from headrace.worker.broker import open_broker

pytestmark = pytest.mark.anyio
KEYS = Keys()


@pytest.fixture(scope="module", params=list(BINARIES))
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ThreeMasters]:
    kind: Kind = request.param
    with three_masters(kind, tmp_path_factory.mktemp("cluster")) as masters:
        yield masters
        assert masters.immortal_keys() == []


def ids_on_every_node(cluster: ThreeMasters, prefix: str, each: int) -> list[str]:
    found: dict[int, list[str]] = {}
    number = 0
    while sum(map(len, found.values())) < each * len(cluster.servers):
        name = f"{prefix}{number}"
        mine = found.setdefault(cluster.owner(KEYS.request(name)).port, [])
        if len(mine) < each:
            mine.append(name)
        number += 1
    return [name for names in found.values() for name in names]


async def test_requests_on_all_nodes_are_streamed_as_they_are_made(cluster: ThreeMasters) -> None:
    names = ids_on_every_node(cluster, "s", 2)
    async with (
        AsyncClient(cluster.url, model=MODEL) as client,
        open_broker(settings(cluster.url, lease=30)) as broker,
        anyio.create_task_group() as tasks,
    ):
        worker = CountingWorker(broker, CountingEngine(pause_at=10))
        handles = [await client.submit("p", id=name, max_tokens=20) for name in names]
        seen: dict[str, list[int]] = {name: [] for name in names}
        ends: dict[str, Done] = {}

        async def follow(name: str) -> None:
            async for event in client.attach(name):
                if isinstance(event, Delta):
                    seen[name] += event.tokens
                else:
                    ends[name] = event

        for handle in handles:
            tasks.start_soon(follow, handle.id)
        tasks.start_soon(worker.serve)
        await until(lambda: all(len(tokens) == 10 for tokens in seen.values()))
        subscribed = 0
        for server in cluster.servers:
            with server.connect() as node:
                subscribed += len(node.execute_command("PUBSUB", "SHARDCHANNELS", "headrace:channel:*"))
        assert subscribed == len(names)
        bystander = cluster.owner(KEYS.channel(names[0])).connect().pubsub()
        bystander.ssubscribe(KEYS.channel(names[0]))
        assert bystander.get_message(timeout=20)["type"] == "ssubscribe"
        worker.engine.pause_at = None
        await until(lambda: len(ends) == len(names))
        message = bystander.get_message(timeout=20)
        assert message is not None
        assert message["type"] == "smessage"
        bystander.close()
        assert all(tokens == list(range(20)) for tokens in seen.values())
        assert [await handle.text() for handle in handles] == [text_of(20)] * len(names)
        tasks.cancel_scope.cancel()


async def test_a_request_is_cancelled_at_once_and_another_taken_over(cluster: ThreeMasters) -> None:
    cancelled, resumed = ids_on_every_node(cluster, "c", 1)[:2]
    async with AsyncClient(cluster.url, model=MODEL) as client:
        async with (
            open_broker(settings(cluster.url, lease=30)) as broker,
            anyio.create_task_group() as tasks,
        ):
            worker = CountingWorker(broker, CountingEngine(pause_at=5))
            tasks.start_soon(worker.serve)
            for name in (cancelled, resumed):
                await client.submit("p", id=name, max_tokens=12)
            await until(lambda: [len(one.tokens) for one in worker.engine.running.values()] == [5, 5])
            assert await client.attach(cancelled).cancel()
            with anyio.fail_after(9):  # a third of the lease: not by a heartbeat
                result = await client.attach(cancelled).result()
            assert (result.finish_reason, result.tokens) == ("cancelled", list(range(5)))
            await broker.outbox.flushed()
            await broker.hand_back()
            tasks.cancel_scope.cancel()
        async with (
            open_broker(settings(cluster.url, "other", lease=30)) as broker,
            anyio.create_task_group() as tasks,
        ):
            worker = CountingWorker(broker)
            tasks.start_soon(worker.serve)
            result = await client.attach(resumed).result()
            assert result.tokens == list(range(12))
            assert worker.engine.first_tokens == {resumed: 5}
            tasks.cancel_scope.cancel()


def is_followed(cluster: ThreeMasters, channel: str) -> bool:
    """Somebody listens to it at the node that has it."""
    with cluster.owner(channel).connect() as node:
        return channel.encode() in node.execute_command("PUBSUB", "SHARDCHANNELS")


def tokens_made(worker: CountingWorker, request_id: str) -> int:
    one = worker.engine.running.get(request_id)
    return 0 if one is None else len(one.tokens)


async def test_slots_that_move_take_queue_and_streams_along(cluster: ThreeMasters) -> None:
    name = "moved"
    async with (
        AsyncClient(cluster.url, model=MODEL) as client,
        open_broker(settings(cluster.url, lease=30)) as broker,
        anyio.create_task_group() as tasks,
    ):
        worker = CountingWorker(broker, CountingEngine(pause_at=5))
        tasks.start_soon(worker.serve)
        await client.submit("p", id=name, max_tokens=30)
        seen: list[int] = []
        ended = anyio.Event()

        async def submit() -> None:
            await client.submit("p", id="meanwhile", max_tokens=1000)

        async def follow() -> None:
            async for event in client.attach(name):
                if isinstance(event, Delta):
                    seen.extend(event.tokens)
            ended.set()

        tasks.start_soon(follow)
        await until(lambda: len(seen) == 5)
        with cluster.moving(KEYS.request(name)):  # scripts have to wait for the end of it
            worker.engine.pause_at = 10
            await until(lambda: broker.counters.retries["down"] > 2)
        await until(lambda: len(seen) == 10)
        await until(lambda: is_followed(cluster, KEYS.channel(name)))
        before = broker.counters.retries["down"]
        with cluster.moving(KEYS.service(MODEL)):
            worker.engine.pause_at = 15
            await until(lambda: len(seen) == 15)
            tasks.start_soon(submit)
            await until(lambda: broker.counters.retries["down"] > before)
        worker.engine.pause_at = None
        with anyio.fail_after(20):
            await ended.wait()
        assert seen == list(range(30))
        next_one = await client.submit("p", max_tokens=5)
        assert (await next_one.result()).tokens == list(range(5))
        assert broker.counters.lost_claims == 0
        waiting = client.attach("meanwhile")
        worker.engine.pause_at = 40  # without tokens, only a notice can tell of cancelling
        await until(lambda: tokens_made(worker, waiting.id) >= 40)
        await until(lambda: is_followed(cluster, KEYS.control(MODEL)))
        await waiting.cancel()  # the notice's channel has moved too
        with anyio.fail_after(9):
            assert (await waiting.result()).finish_reason == "cancelled"
        tasks.cancel_scope.cancel()


async def test_several_are_enqueued_on_all_nodes_or_none(cluster: ThreeMasters) -> None:
    names = ids_on_every_node(cluster, "several", 2)
    requests = [make_request(id=name, model="several", prompt="p") for name in names]
    async with AsyncClient(cluster.url, queue_limit=len(names) - 1) as client:
        with pytest.raises(QueueFull, match=f"{len(names)} more do not fit"):
            await client.submit_all(requests)
        for name in names:
            with pytest.raises(UnknownRequest):
                await client.attach(name).status()
        client.queue_limit = len(names)
        for _ in "ab":
            handles = await client.submit_all(requests)
            assert [(await handle.status()).status for handle in handles] == ["queued"] * len(names)
        client.queue_limit = 2 * len(names)
        more = [make_request(id=f"{name}-more", model="several", prompt="p") for name in names]
        await client.submit_all([*requests, *more])  # full again only if each was enqueued once
        with pytest.raises(QueueFull):
            await client.submit("p", model="several")


async def test_queues_and_workers_are_found_on_whichever_node(cluster: ThreeMasters) -> None:
    async with (
        AsyncClient(cluster.url) as client,
        open_broker(settings(cluster.url, "seen"), record=lambda: {"version": "1"}) as broker,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(broker.run)
        await client.submit("p", model="other", id="waits")
        monitor = Monitor(client.connection, client.keys)
        with anyio.fail_after(20):
            while True:
                overview = await monitor.look()
                waiting = {
                    queue.model: queue.waiting for queue in overview.queues if queue.priority == "normal"
                }
                if [worker.name for worker in overview.workers] == ["seen"] and waiting.get("other") == 1:
                    break
        tasks.cancel_scope.cancel()


async def test_a_gateway_answers_and_works_through_a_batch(cluster: ThreeMasters) -> None:
    body = {"model": MODEL, "prompt": "p", "max_tokens": 4}
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}
        for number in range(5)
    ]
    data = "\n".join(map(json.dumps, lines)).encode()
    async with (
        open_broker(settings(cluster.url, lease=30), record=lambda: {"version": "1"}) as broker,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(CountingWorker(broker).serve)
        with running_gateway(cluster.url) as gateway:
            async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:

                async def is_seen() -> bool:
                    return MODEL in (await http.get("/v1/models")).text

                await eventually(is_seen)
                reply = await http.post("/v1/completions", json=body)
                assert reply.json()["usage"]["completion_tokens"] == 4, reply.text
                upload = {"file": ("in.jsonl", data)}
                sent = await http.post("/v1/files", files=upload, data={"purpose": "batch"})
                order = {
                    "input_file_id": sent.json()["id"],
                    "endpoint": "/v1/completions",
                    "completion_window": "24h",
                }
                batch = (await http.post("/v1/batches", json=order)).json()

                async def completed() -> bool:
                    shown = (await http.get(f"/v1/batches/{batch['id']}")).json()
                    return shown["status"] == "completed" and shown["request_counts"]["completed"] == 5

                await eventually(completed)
        tasks.cancel_scope.cancel()


async def test_an_entry_that_somebody_trimmed_is_put_back(cluster: ThreeMasters) -> None:
    """By the worker while it runs the request, by its client's submitting it again where nobody does."""
    waits, runs = ids_on_every_node(cluster, "trim", 1)[:2]
    queue = KEYS.queue(MODEL, "normal", 0)
    (owner,) = [server for server in cluster.servers if server.port == cluster.owner(queue).port]

    def trim() -> None:
        with owner.connect() as node:
            node.xtrim(queue, maxlen=0, approximate=False)

    async with AsyncClient(cluster.url, model=MODEL) as client:
        async with (
            open_broker(settings(cluster.url, "first")) as broker,
            anyio.create_task_group() as tasks,
        ):
            handle = await client.submit("p", id=runs, max_tokens=20)
            worker = CountingWorker(broker, CountingEngine(pause_at=5))
            tasks.start_soon(worker.serve)
            await until(lambda: [len(one.tokens) for one in worker.engine.running.values()] == [5])
            await broker.outbox.flushed()
            trim()
            await until(lambda: broker.counters.put_back == 1)
            tasks.cancel_scope.cancel()
        await client.submit("p", id=waits, max_tokens=4)
        with owner.connect() as node:
            entry = node.xrevrange(queue, count=1)[0][0]
            node.xdel(queue, entry)
        with cluster.owner(KEYS.request(waits)).connect() as node:
            node.hset(KEYS.request(waits), "entry", "1-1")
        for _ in range(2):
            again = await client.submit("p", id=waits, max_tokens=4)
        async with (
            open_broker(settings(cluster.url, "second")) as broker,
            anyio.create_task_group() as tasks,
        ):
            worker = CountingWorker(broker)
            tasks.start_soon(worker.serve)
            assert (await handle.result()).tokens == list(range(20))
            assert (await again.result()).tokens == list(range(4))
            await until(lambda: broker.num_owned == 0)
            tasks.cancel_scope.cancel()
        assert worker.engine.first_tokens == {runs: 5, waits: 0}
