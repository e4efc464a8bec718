"""The accounts of ``deploy/acl``: each can do its work, and nothing else."""

import json
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx
import msgpack
import pytest
import redis
from counting_worker import MODEL, CountingEngine, CountingWorker, settings, until
from gateway_server import running_gateway
from redis_cluster import three_masters
from redis_servers import BINARIES, RedisServer, immortal_keys, running
from typer import Typer
from typer.testing import CliRunner
from waiting import eventually

from headrace.clients import AsyncClient
from headrace.clients.cli.dead import dead
from headrace.clients.cli.top import top
from headrace.clients.protocol import GROUP, Keys
from headrace.worker.broker import open_broker
from headrace.worker.broker.scripts import PRUNE

pytestmark = pytest.mark.anyio
ACCOUNTS = Path(__file__).parents[3] / "deploy" / "acl"
PASSWORD = "of-this-test"  # noqa: S105


@pytest.fixture(params=list(BINARIES))
def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    """A server with the accounts, and one for the test that may do everything."""
    lines = [path.read_text().replace("CHANGE-ME", PASSWORD) for path in sorted(ACCOUNTS.glob("*.acl"))]
    file = tmp_path / "users.acl"
    file.write_text("".join(lines))
    with running(RedisServer(request.param, tmp_path, options={"aclfile": str(file)})) as server:
        yield server
        with server.connect() as client:
            assert immortal_keys(client) == []


def url_of(server: RedisServer, account: str) -> str:
    return f"redis://headrace-{account}:{PASSWORD}@127.0.0.1:{server.port}/0"


def assert_nothing_was_refused(server: RedisServer) -> None:
    with server.connect() as client:
        log = client.acl_log()
    assert [(entry["username"], entry["reason"], entry["object"]) for entry in log] == []


async def test_producer_and_worker_do_all_of_their_work(guarded: RedisServer) -> None:
    worker_url = url_of(guarded, "worker")
    async with (
        AsyncClient(url_of(guarded, "producer"), model=MODEL, patience=5) as client,
        anyio.create_task_group() as tasks,
    ):
        config = settings(worker_url, "first", lease=0.6)
        async with open_broker(config, record=lambda: {"version": "1"}) as broker:
            worker = CountingWorker(broker, CountingEngine(pause_at=5))
            tasks.start_soon(worker.serve)
            handle = await client.submit("p", max_tokens=10)
            again = await client.submit("p", id=handle.id, max_tokens=10)
            doomed = await client.submit("p", max_tokens=10)
            await until(lambda: sorted(len(one.tokens) for one in worker.engine.running.values()) == [5, 5])
            with guarded.connect() as admin:
                admin.xtrim(Keys().queue(MODEL, "normal", 0), maxlen=0, approximate=False)
            await until(lambda: broker.counters.put_back == 2)
            await doomed.cancel()
            assert (await doomed.result()).finish_reason == "cancelled"
            assert (await again.status()).status == "running"
            await until(lambda: broker.counters.round_trips > 40)
            await broker.outbox.flushed()
            await broker.hand_back()
            tasks.cancel_scope.cancel()
    async with (
        AsyncClient(url_of(guarded, "producer"), model=MODEL, patience=5) as client,
        open_broker(settings(worker_url, "second", lease=0.6)) as broker,
        anyio.create_task_group() as tasks,
    ):
        worker = CountingWorker(broker)
        tasks.start_soon(worker.serve)
        with guarded.connect() as admin:
            admin.xadd(f"headrace:queue:{{{MODEL}}}:normal:0", {"r": b"no request"})
            await until(lambda: admin.xlen(f"headrace:dead:{{{MODEL}}}") == 1)
        assert (await client.attach(handle.id).result()).tokens == list(range(10))
        await broker._connection.run(PRUNE, Keys().queues(MODEL), [GROUP, 0])
        assert not {"denied", "other"} & set(broker.counters.retries)
        tasks.cancel_scope.cancel()
    assert_nothing_was_refused(guarded)


async def test_the_accounts_suffice_in_a_cluster(tmp_path: Path) -> None:
    lines = [path.read_text().replace("CHANGE-ME", PASSWORD) for path in sorted(ACCOUNTS.glob("*.acl"))]
    (tmp_path / "users.acl").write_text("".join(lines))
    with three_masters("redis", tmp_path, {"aclfile": str(tmp_path / "users.acl")}) as cluster:

        def url(account: str) -> str:
            return cluster.url.replace("://", f"://headrace-{account}:{PASSWORD}@")

        async with (
            AsyncClient(url("producer"), model=MODEL, patience=5) as client,
            open_broker(settings(url("worker")), record=lambda: {"model": MODEL}) as broker,
            anyio.create_task_group() as tasks,
        ):
            worker = CountingWorker(broker, CountingEngine(pause_at=5))
            tasks.start_soon(worker.serve)
            handles = [await client.submit("p", max_tokens=10) for _ in range(6)]
            await until(lambda: [len(one.tokens) for one in worker.engine.running.values()] == [5] * 6)
            assert await handles[0].cancel()
            assert (await handles[0].result()).finish_reason == "cancelled"
            with running_gateway(url("gateway")) as gateway:
                async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:

                    async def is_seen() -> bool:
                        return MODEL in (await http.get("/v1/models")).text

                    await eventually(is_seen)
                    worker.engine.pause_at = None
                    body = {"model": MODEL, "prompt": "p", "max_tokens": 4}
                    assert (await http.post("/v1/completions", json=body)).status_code == 200
            for handle in handles[1:]:
                assert (await handle.result()).tokens == list(range(10))
            tasks.cancel_scope.cancel()
        for server in cluster.servers:
            assert_nothing_was_refused(server)


async def test_a_gateway_does_all_of_its_work(guarded: RedisServer) -> None:
    config = settings(url_of(guarded, "worker"), lease=2)
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions"}
    body = {"model": MODEL, "prompt": "p", "max_tokens": 4}
    async with (
        open_broker(config, record=lambda: {"model": MODEL, "version": "1"}) as broker,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(CountingWorker(broker).serve)
        with running_gateway(url_of(guarded, "gateway")) as gateway:
            async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:
                with guarded.connect() as admin:
                    await until(lambda: admin.exists(f"headrace:worker:{{{MODEL}}}:w"))
                assert (await http.get("/v1/models")).json()["data"][0]["id"] == MODEL
                reply = await http.post("/v1/completions", json=body)
                assert reply.status_code == 200, reply.text
                assert reply.json()["usage"]["completion_tokens"] == 4
                data = json.dumps({**line, "body": body}).encode()
                upload = {"file": ("in.jsonl", data)}
                sent = await http.post("/v1/files", files=upload, data={"purpose": "batch"})
                assert sent.status_code == 200, sent.text
                order = {
                    "input_file_id": sent.json()["id"],
                    "endpoint": "/v1/completions",
                    "completion_window": "24h",
                }
                batch = (await http.post("/v1/batches", json=order)).json()

                async def completed() -> bool:
                    shown = await http.get(f"/v1/batches/{batch['id']}")
                    return shown.json()["status"] == "completed"

                await eventually(completed)
                assert (await http.get("/v1/files")).status_code == 200
                assert (await http.get("/v1/batches")).status_code == 200
                assert (await http.delete(f"/v1/files/{sent.json()['id']}")).status_code == 200
        tasks.cancel_scope.cancel()
    assert_nothing_was_refused(guarded)


def test_an_operator_does_all_of_their_work(guarded: RedisServer) -> None:
    body = {"v": 1, "id": "poison", "model": MODEL, "prompt": "p"}
    stream = f"headrace:dead:{{{MODEL}}}"
    with guarded.connect() as admin:
        worker = f"headrace:worker:{{{MODEL}}}:w"
        admin.hset(worker, mapping={"model": MODEL, "version": "7.7", "updated": 1})
        admin.expire(worker, 600)
        for key, fields in (("request", {"status": "finished", "epoch": 6}), ("events", {"e": "old"})):
            name = f"headrace:{key}:{{poison}}"
            admin.hset(name, mapping=fields) if key == "request" else admin.xadd(name, fields)
            admin.expire(name, 600)
        letters = [
            admin.xadd(stream, {"r": r, "error": "x", "attempts": 6}) for r in (msgpack.packb(body), b"junk")
        ]

    def run(command: Typer, *arguments: str) -> str:
        result = CliRunner().invoke(command, [*arguments, "--redis", url_of(guarded, "operator")])
        assert result.exit_code == 0, result.output
        return result.output

    of_model = ("--model", MODEL)
    assert "poison" in run(dead, "list", *of_model)
    assert json.loads(run(dead, "show", "poison", *of_model))["request"]["prompt"] == "p"
    run(dead, "retry", "poison", *of_model)
    run(dead, "drop", letters[1].decode(), *of_model)
    assert "No dead letters" in run(dead, "list", *of_model)
    app = Typer()
    app.command()(top)
    seen = json.loads(run(app, "--json"))
    assert [worker["version"] for worker in seen["workers"]] == ["7.7"]
    assert {queue["waiting"] for queue in seen["queues"]} == {0, 1}
    assert_nothing_was_refused(guarded)


REQUEST = "headrace:request:{r}"
EVENTS = "headrace:events:{r}"
QUEUE = "headrace:queue:{m}:normal:0"


@pytest.fixture(scope="module", params=list(BINARIES))
def shared_guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisServer]:
    folder = tmp_path_factory.mktemp("acl")
    lines = [path.read_text().replace("CHANGE-ME", PASSWORD) for path in sorted(ACCOUNTS.glob("*.acl"))]
    (folder / "users.acl").write_text("".join(lines))
    options = {"aclfile": str(folder / "users.acl")}
    with running(RedisServer(request.param, folder, options=options)) as server:
        with server.connect() as client:
            client.set("other", "secret", ex=600)
        yield server


@pytest.mark.parametrize(
    ("account", "call"),
    [
        ("producer", ("XADD", EVENTS, "*", "e", "forged")),
        ("producer", ("PUBLISH", "headrace:channel:{r}", "forged")),
        ("producer", ("EVAL", "redis.call('XADD', KEYS[1], '*', 'e', 'forged')", "1", EVENTS)),
        ("producer", ("EVAL", "redis.call('PUBLISH', 'headrace:channel:{r}', 'forged')", "0")),
        ("producer", ("XRANGE", QUEUE, "-", "+")),
        ("producer", ("XREADGROUP", "GROUP", "workers", "x", "STREAMS", QUEUE, ">")),
        ("producer", ("SUBSCRIBE", "headrace:control:{m}")),
        ("producer", ("PSUBSCRIBE", "headrace:*")),
        ("producer", ("SCAN", "0")),
        ("worker", ("XTRIM", QUEUE, "MAXLEN", "0")),
        ("worker", ("SUBSCRIBE", "headrace:channel:{r}")),
        ("worker", ("HGETALL", REQUEST)),
        ("worker", ("DEL", REQUEST)),
        ("worker", ("XRANGE", "headrace:dead:{m}", "-", "+")),
        ("worker", ("GET", "headrace:gateway:rate:{k}")),
        ("gateway", ("XADD", EVENTS, "*", "e", "forged")),
        ("gateway", ("PUBLISH", "headrace:channel:{r}", "forged")),
        ("gateway", ("XDEL", QUEUE, "1-1")),
        ("gateway", ("HSET", "headrace:worker:{m}:w", "a", "b")),
        ("gateway", ("EVAL", "return redis.call('GET', 'other')", "1", "headrace:gateway:x")),
        ("operator", ("XREADGROUP", "GROUP", "workers", "x", "STREAMS", QUEUE, ">")),
        ("operator", ("XDEL", QUEUE, "1-1")),
        ("operator", ("XADD", EVENTS, "*", "e", "forged")),
        ("operator", ("XRANGE", EVENTS, "-", "+")),
        ("operator", ("PUBLISH", "headrace:channel:{r}", "forged")),
        ("operator", ("SUBSCRIBE", "headrace:channel:{r}")),
        ("operator", ("XADD", "headrace:dead:{m}", "*", "r", "forged")),
        ("operator", ("HSET", "headrace:worker:{m}:w", "a", "b")),
        ("operator", ("GET", "headrace:gateway:rate:{k}")),
        *(
            (account, call)
            for account in ("producer", "worker", "gateway", "operator")
            for call in (
                ("GET", "other"),
                ("EVAL", "return redis.call('GET', 'other')", "0"),
                ("KEYS", "*"),
                ("FLUSHALL",),
                ("CONFIG", "GET", "*"),
                ("SCRIPT", "FLUSH"),
                ("ACL", "LIST"),
                ("CLIENT", "KILL", "ID", "1"),
                ("MONITOR",),
            )
        ),
    ],
)
def test_what_is_nobodys_business_is_refused(
    shared_guarded: RedisServer, account: str, call: tuple[str, ...]
) -> None:
    with (
        redis.Redis.from_url(url_of(shared_guarded, account), protocol=2) as client,
        pytest.raises(
            redis.ResponseError, match=r"(?i)permission|ACL failure|executing the script can.t"
        ) as refusal,
    ):
        client.execute_command(*call)
    assert "forged" not in str(refusal.value)
