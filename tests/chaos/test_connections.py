"""What chaos found in the client's connection for channels."""

import asyncio
from typing import Any

import anyio
import pytest
import redis
from redis.asyncio.client import PubSub
from waiting import eventually

from headrace.clients import AsyncClient

pytestmark = pytest.mark.anyio

CHANNEL = "headrace:channel:{a}"


@pytest.mark.parametrize(
    "failure",
    [
        RuntimeError("readuntil() called while another coroutine is already waiting for incoming data"),
        AttributeError("'NoneType' object has no attribute 'writelines'"),
    ],
    ids=["reconnected by both", "closed by the other"],
)
async def test_a_connection_taken_from_under_a_task_counts_as_lost_and_is_replaced(
    redis_url: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """Subscribing and receiving may both find it lost; what one does about it the other does not expect."""
    subscribe = PubSub.subscribe
    failures = 0

    async def subscribe_or_fail(self: PubSub, *channels: Any) -> Any:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise failure
        return await subscribe(self, *channels)

    monkeypatch.setattr(PubSub, "subscribe", subscribe_or_fail)
    async with AsyncClient(redis_url, model="m") as client:
        with client.channels.open(CHANNEL) as box:
            await eventually(lambda: dict(redis_client.pubsub_numsub(CHANNEL))[CHANNEL.encode()] == 1)
            with anyio.fail_after(30):
                assert await box.receive(30) is None  # subscribed: read the log
                redis_client.publish(CHANNEL, b"event")
                assert await box.receive(30) == b"event"
    assert failures == 2


async def test_closing_ends_even_when_a_cancellation_is_forgotten(
    redis_url: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``asyncio.wait_for`` does that in Python 3.11, when a reply comes at the same moment."""
    get_message = PubSub.get_message
    forgotten = 0

    async def get_message_and_forget(self: PubSub, *arguments: Any, **more: Any) -> Any:
        nonlocal forgotten
        try:
            return await get_message(self, *arguments, **more)
        except asyncio.CancelledError:
            if forgotten:
                raise
            forgotten += 1
            return None

    monkeypatch.setattr(PubSub, "get_message", get_message_and_forget)
    client = AsyncClient(redis_url, model="m")
    with client.channels.open(CHANNEL):
        await eventually(lambda: dict(redis_client.pubsub_numsub(CHANNEL))[CHANNEL.encode()] == 1)
        with anyio.fail_after(30):
            await client.aclose()
    assert forgotten == 1
