"""JavaScript before real workers with a tiny model: killed in mid-stream, cancelled, in a cluster."""

import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from js_client import JsProcess
from js_reader import JsReader
from live_worker import live_worker
from redis_cluster import three_masters
from redis_servers import BINARIES, RedisServer, running
from tiny_models import save_tiny_model
from waiting import LONG, eventually
from worker_processes import worker_processes

from headrace.clients import AsyncClient

pytestmark = pytest.mark.anyio
TOKENS = 80
ASKED: dict[str, Any] = {"max_tokens": TOKENS, "ignore_eos": True, "temperature": 1, "seed": 7}
LONGEST = {"max_tokens": 400}


def slowly(*_: object) -> None:
    """An engine step that lasts long enough to be cancelled in."""
    time.sleep(0.01)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model("llama", tmp_path_factory.mktemp("model"), chat_template=True)


async def test_a_stream_goes_on_when_its_worker_is_killed(
    node: JsProcess, tmp_path: Path, model: Path
) -> None:
    with running(RedisServer(next(iter(BINARIES)), tmp_path / "server", durable=True)) as server:
        settings = {
            "model": str(model),
            "served_name": "tiny",
            "redis": server.url,
            "device": "cpu",
            "dtype": "float32",
            "lease": 1.0,
            "max_attempts": 20,
            "kv_cache_memory": "1MiB",
        }
        client = await node.open(server.url, model="tiny", patience=120_000)
        async with worker_processes("real", tmp_path) as workers:
            handle = await client.submit(prompt="The water läuft 😀", id="followed", logprobs=1, **ASKED)
            reader = JsReader(handle.events())
            async with anyio.create_task_group() as group:
                group.start_soon(reader.run)
                for goal in (TOKENS // 4, TOKENS // 2):
                    worker = await workers.start(settings, step_seconds=0.02)
                    await eventually(lambda goal=goal: len(reader.tokens) >= goal, 2 * LONG)
                    await worker.kill()
                worker = await workers.start(settings, step_seconds=0.0)
            result = await handle.result()
            async with AsyncClient(server.url, model="tiny") as python:
                same = await python.attach("followed").result()
                whole = await (await python.submit("The water läuft 😀", **ASKED)).result()
            assert await worker.stop() == 0, workers.log.read_text()
        await client.close()
    assert len({event["epoch"] for event in reader.events}) == 3, "it was not interrupted"
    assert reader.tokens == result["tokens"] == same.tokens == whole.tokens
    assert reader.text == result["text"] == same.text == whole.text
    assert len(reader.tokens) == TOKENS
    assert len(result["logprobs"]) == TOKENS
    assert [end["finish_reason"] for end in reader.ends] == ["length"]
    assert result["usage"]["completion_tokens"] == TOKENS


async def test_cancelling_stops_the_worker_at_once(node: JsProcess, redis_url: str, model: Path) -> None:
    client = await node.open(redis_url, model="tiny")
    async with live_worker(redis_url, model, observe=slowly) as worker:
        handle = await client.submit(messages=[{"role": "user", "content": "the mill"}], **(ASKED | LONGEST))
        reader = JsReader(handle.events())
        async with anyio.create_task_group() as group:
            group.start_soon(reader.run)
            await eventually(lambda: reader.tokens)
            assert await handle.cancel()
        assert [end["finish_reason"] for end in reader.ends] == ["cancelled"]
        assert 0 < len(reader.tokens) < LONGEST["max_tokens"]
        await eventually(lambda: worker.engine.status.blocks_free == worker.engine.status.blocks_total)
    await client.close()


async def test_in_a_cluster(node: JsProcess, tmp_path: Path, model: Path) -> None:
    """Requests in every node's slots, followed from both languages; one moves in mid-stream."""
    with three_masters("redis", tmp_path / "cluster") as cluster:
        client = await node.open(cluster.url, model="tiny", patience=60_000)
        async with live_worker(cluster.url, model), AsyncClient(cluster.url, model="tiny") as python:
            handles = [await client.submit(prompt=f"mill {n}", **ASKED) for n in range(9)]
            owners = {cluster.owner(f"headrace:request:{{{handle.id}}}").port for handle in handles}
            assert len(owners) > 1
            readers = [JsReader(handle.events()) for handle in handles]
            async with anyio.create_task_group() as group:
                for reader in readers:
                    group.start_soon(reader.run)
                with cluster.moving(f"headrace:request:{{{handles[0].id}}}"):
                    pass
            for handle, reader in zip(handles, readers, strict=True):
                assert (await python.attach(handle.id).result()).tokens == reader.tokens
                assert len(reader.tokens) == TOKENS and len(reader.ends) == 1
            cancelled = await client.submit(prompt="mill", **(ASKED | LONGEST))
            assert await cancelled.cancel()
            assert (await cancelled.result())["finish_reason"] == "cancelled"
        assert cluster.immortal_keys() == []
        await client.close()
