"""Cancelling and looking at where a request stands."""

import msgpack
import pytest
from fake_worker import FakeWorker
from waiting import eventually

from headrace.clients import AsyncClient

pytestmark = pytest.mark.anyio


async def test_cancelling_flags_the_request_and_notifies_its_workers(
    client: AsyncClient, worker: FakeWorker
) -> None:
    notices = worker.redis.pubsub()
    notices.subscribe(worker.keys.control("m"))
    assert notices.get_message(timeout=10)["type"] == "subscribe"
    handle = await client.submit("Hello")
    worker.take()
    assert await handle.cancel()
    assert worker.cancelled(handle.id)
    message = await eventually(lambda: notices.get_message(timeout=1))
    assert msgpack.unpackb(message["data"]) == {"cancel": handle.id}
    worker.emit(handle.id, "Hal")
    worker.finish(handle.id, "cancelled")
    assert (await handle.result()).finish_reason == "cancelled"
    notices.close()


async def test_the_notice_goes_to_the_model_of_the_request(client: AsyncClient, worker: FakeWorker) -> None:
    notices = worker.redis.pubsub()
    notices.subscribe(worker.keys.control("other"))
    assert notices.get_message(timeout=10)["type"] == "subscribe"
    handle = await client.submit("Hello", model="other")
    await client.attach(handle.id).cancel()
    assert (await eventually(lambda: notices.get_message(timeout=1)))["type"] == "message"
    notices.close()


async def test_cancelling_what_is_over_or_unknown_does_nothing(
    client: AsyncClient, worker: FakeWorker
) -> None:
    handle = await client.submit("Hello")
    worker.take()
    worker.finish(handle.id)
    assert not await handle.cancel()
    assert not worker.cancelled(handle.id)
    assert not await client.attach("unknown").cancel()
    assert not worker.redis.exists(worker.keys.request("unknown"))


async def test_status_follows_the_request_through_its_life(client: AsyncClient, worker: FakeWorker) -> None:
    handle = await client.submit("Hello")
    status = await handle.status()
    assert (status.status, status.attempts, status.worker, status.cancelled) == ("queued", 0, None, False)
    assert status.timings.created and status.timings.started is None
    worker.take()
    status = await handle.status()
    assert (status.status, status.attempts, status.worker) == ("running", 1, "fake")
    await handle.cancel()
    assert (await handle.status()).cancelled
    worker.finish(handle.id, "cancelled")
    status = await handle.status()
    assert (status.status, status.finish_reason) == ("finished", "cancelled")
    assert status.timings.took is not None
