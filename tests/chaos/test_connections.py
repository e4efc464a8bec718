"""What chaos found in the client's connection for channels."""

from typing import Any

import anyio
import pytest
import redis
from redis.asyncio.client import PubSub
from waiting import eventually

from headrace.clients import AsyncClient

pytestmark = pytest.mark.anyio

CHANNEL = "headrace:channel:{a}"


async def test_a_connection_that_two_tasks_restore_at_once_counts_as_lost_and_is_replaced(
    redis_url: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Subscribing and receiving may both find it lost, reconnect it, and then both read from it."""
    subscribe = PubSub.subscribe
    failures = 0

    async def subscribe_or_fail(self: PubSub, *channels: Any) -> Any:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise RuntimeError(
                "readuntil() called while another coroutine is already waiting for incoming data"
            )
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
