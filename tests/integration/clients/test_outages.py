"""Redis killed, cut off or frozen while requests are submitted and followed."""

import threading
from collections.abc import AsyncIterator, Iterator

import anyio
import pytest
from fake_worker import FakeWorker
from redis_servers import RedisServer
from waiting import LONG, eventually

from headrace.clients import AsyncClient, Delta, Done, Unavailable

pytestmark = pytest.mark.anyio


@pytest.fixture
def worker(private_server: RedisServer) -> Iterator[FakeWorker]:
    worker = FakeWorker(private_server.url)
    yield worker
    worker.close()


@pytest.fixture
async def client(private_server: RedisServer) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(private_server.url, model="m", timeout=1.0, patience=60) as client:
        yield client


async def test_a_restart_in_mid_stream_is_only_a_pause(
    client: AsyncClient, worker: FakeWorker, private_server: RedisServer
) -> None:
    handle = await client.submit("Hello")
    worker.take()
    deltas: list[Delta] = []
    ends: list[Done] = []

    async def read() -> None:
        with anyio.fail_after(2 * LONG):
            async for event in handle:
                if isinstance(event, Done):
                    ends.append(event)
                else:
                    deltas.append(event)

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        for number in range(3):
            worker.emit(handle.id, f"{number} ")
            await eventually(lambda number=number: len(deltas) == 2 * number + 1)
            private_server.kill()
            restart = threading.Timer(0.3, private_server.start)
            restart.start()
            await anyio.to_thread.run_sync(restart.join)
            # Before the subscription is back, and so only in the log.
            worker.emit(handle.id, "- ")
            await eventually(lambda number=number: len(deltas) == 2 * number + 2)
        worker.finish(handle.id)
    assert "".join(delta.text for delta in deltas) == "0 - 1 - 2 - "
    assert [token for delta in deltas for token in delta.tokens] == list(range(1000, 1006))
    assert len(ends) == 1


async def test_cut_connections_come_back(client: AsyncClient, worker: FakeWorker) -> None:
    handle = await client.submit("Hello")
    worker.take()
    stream = aiter(handle)
    texts: list[str] = []
    with anyio.fail_after(2 * LONG):
        for number in range(5):
            worker.redis.client_kill_filter(_type="pubsub")
            worker.redis.client_kill_filter(_type="normal", skipme=True)
            worker.emit(handle.id, f"{number} ")
            event = await anext(stream)
            assert isinstance(event, Delta)
            texts.append(event.text)
        worker.finish(handle.id)
        assert isinstance(await anext(stream), Done)
    assert "".join(texts) == "0 1 2 3 4 "


async def test_a_submission_waits_for_a_server_that_restarts(
    client: AsyncClient, private_server: RedisServer, worker: FakeWorker
) -> None:
    await client.submit("Hello", id="before")
    private_server.kill()
    restart = threading.Timer(0.3, private_server.start)
    restart.start()
    with anyio.fail_after(LONG):
        await client.submit("Hello", id="after")
    restart.join()
    assert [worker.take().id, worker.take().id] == ["before", "after"]


async def test_a_frozen_server_is_an_unavailable_one(private_server: RedisServer) -> None:
    async with AsyncClient(private_server.url, model="m", timeout=0.2, patience=0.5) as client:
        await client.submit("Hello", id="before")
        private_server.pause()
        with anyio.fail_after(LONG), pytest.raises(Unavailable):
            await client.submit("Hello", id="r")
        with anyio.fail_after(LONG), pytest.raises(Unavailable):
            await client.attach("before").text()
        private_server.resume()


async def test_a_subscription_that_silently_died_is_restored(
    client: AsyncClient,
    worker: FakeWorker,
    private_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server froze: its connections look open, and nothing answers until it is replaced."""
    monkeypatch.setattr("headrace.clients.channels._PING_AFTER", 0.2)
    handle = await client.submit("Hello")
    worker.take()
    worker.emit(handle.id, "a")
    stream = aiter(handle)
    await anext(stream)
    before = {c["id"] for c in worker.redis.client_list(_type="pubsub")}
    private_server.pause()
    await eventually(lambda: "no answer to a ping" in caplog.text)
    private_server.resume()

    def renewed() -> bool:
        return any(c["id"] not in before for c in worker.redis.client_list(_type="pubsub"))

    await eventually(renewed)
    worker.emit(handle.id, "b")
    with anyio.fail_after(LONG):
        event = await anext(stream)
    assert isinstance(event, Delta) and event.text == "b"
    await stream.aclose()
