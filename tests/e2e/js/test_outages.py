"""Redis killed, cut off or frozen while JavaScript submits and follows."""

import threading
from collections.abc import AsyncIterator, Iterator

import anyio
import pytest
from cut_proxy import CutProxy, cuttable
from fake_worker import FakeWorker
from js_client import JsClient, JsError, JsProcess
from js_reader import JsReader, subscribed
from redis_servers import RedisServer
from waiting import LONG, eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
def worker(private_server: RedisServer) -> Iterator[FakeWorker]:
    worker = FakeWorker(private_server.url)
    yield worker
    worker.close()


@pytest.fixture
def proxy(private_server: RedisServer) -> Iterator[CutProxy]:
    with cuttable(private_server.url) as proxy:
        yield proxy


@pytest.fixture
async def client(node: JsProcess, proxy: CutProxy) -> AsyncIterator[JsClient]:
    """Behind the proxy."""
    client = await node.open(proxy.url.replace("http", "redis"), model="m", timeout=1000, patience=60_000)
    yield client
    await client.close()


async def test_a_cut_in_mid_stream_loses_nothing(
    client: JsClient, worker: FakeWorker, proxy: CutProxy
) -> None:
    handle = await client.submit(prompt="Hello")
    worker.take()
    reader = JsReader(handle.events())
    async with anyio.create_task_group() as group:
        group.start_soon(reader.run)
        for number in range(4):
            worker.emit(handle.id, f"{number}😀")
            await eventually(lambda number=number: len(reader.tokens) == 2 * number + 1)
            proxy.cut()
            worker.emit(handle.id, "- ")  # while nobody hears
            proxy.mend()
            await eventually(lambda number=number: len(reader.tokens) == 2 * number + 2)
        worker.finish(handle.id)
    assert reader.text == "".join(f"{number}😀- " for number in range(4))
    assert reader.tokens == list(range(1000, 1008))
    assert len(reader.ends) == 1


async def test_the_end_may_come_while_the_connection_is_cut(
    client: JsClient, worker: FakeWorker, proxy: CutProxy
) -> None:
    handle = await client.submit(prompt="Hello")
    worker.take()
    reader = JsReader(handle.events())
    async with anyio.create_task_group() as group:
        group.start_soon(reader.run)
        await subscribed(worker, handle)
        worker.emit(handle.id, "a")
        await eventually(lambda: reader.text == "a")
        proxy.cut()
        worker.emit(handle.id, "b")
        worker.finish(handle.id, "length")
        proxy.mend()
    assert reader.text == "ab"
    assert [end["finish_reason"] for end in reader.ends] == ["length"]


async def test_a_restart_in_mid_stream_is_only_a_pause(
    node: JsProcess, worker: FakeWorker, private_server: RedisServer
) -> None:
    client = await node.open(private_server.url, model="m", timeout=1000, patience=60_000)
    handle = await client.submit(prompt="Hello")
    worker.take()
    reader = JsReader(handle.events())
    async with anyio.create_task_group() as group:
        group.start_soon(reader.run)
        for number in range(2):
            worker.emit(handle.id, f"{number} ")
            await eventually(lambda number=number: len(reader.tokens) == 2 * number + 1)
            private_server.kill()
            restart = threading.Timer(0.3, private_server.start)
            restart.start()
            await anyio.to_thread.run_sync(restart.join)
            # Before the subscription is back, and so only in the log.
            worker.emit(handle.id, "- ")
            await eventually(lambda number=number: len(reader.tokens) == 2 * number + 2)
        worker.finish(handle.id)
    assert reader.text == "0 - 1 - "
    assert reader.tokens == list(range(1000, 1004))
    assert len(reader.ends) == 1
    await client.close()


async def test_a_submission_waits_for_a_server_that_is_away(
    client: JsClient, worker: FakeWorker, proxy: CutProxy
) -> None:
    await client.submit(prompt="Hello", id="before")
    proxy.cut()
    mended = threading.Timer(0.3, proxy.mend)
    mended.start()
    await client.submit(prompt="Hello", id="after")
    mended.join()
    assert [worker.take().id, worker.take().id] == ["before", "after"]


async def test_a_frozen_server_is_an_unavailable_one(node: JsProcess, private_server: RedisServer) -> None:
    client = await node.open(private_server.url, model="m", timeout=200, patience=500)
    waiting = await client.submit(prompt="Hello", id="before")
    private_server.pause()
    with anyio.fail_after(LONG), pytest.raises(JsError, match="cannot be reached") as caught:
        await client.submit(prompt="Hello", id="r")
    assert caught.value.name == "Unavailable"
    with anyio.fail_after(LONG), pytest.raises(JsError, match="cannot be reached"):
        await waiting.text()
    private_server.resume()
    assert (await waiting.status())["status"] == "queued"
    await client.close()


async def test_a_refusal_is_told_at_once_and_without_the_password(
    node: JsProcess, private_server: RedisServer
) -> None:
    url = private_server.url.replace("redis://", "redis://nobody:s3cret@")
    client = await node.open(url, model="m", patience=3_600_000)
    with pytest.raises(JsError, match="refuses: WRONGPASS") as caught:
        await client.submit(prompt="Hello")
    assert "s3cret" not in str(caught.value.fields)
    await client.close()
