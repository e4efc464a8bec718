"""Hostile entries of any kind among good ones: the good ones are answered and the worker lives."""

import random

import anyio
import redis
from counting_worker import (
    KEYS,
    MODEL,
    CountingWorker,
    assert_served,
    enqueue,
    queue_is_empty,
    settings,
    until,
)
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from headrace.clients.protocol import PRIORITIES
from headrace.worker.broker import open_broker

from .hostile import hostile_entry


@hypothesis_settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 1 << 32), count=st.integers(1, 40))
def test_hostile_entries_stop_nobody(
    redis_url: str, redis_client: redis.Redis, seed: int, count: int
) -> None:
    dice = random.Random(seed)
    redis_client.flushall()
    enqueue(redis_client, "before")
    for number in range(count):
        queue = KEYS.queue(MODEL, dice.choice(PRIORITIES), dice.randrange(16))
        redis_client.xadd(queue, hostile_entry(dice, number, MODEL) or {b"": b""})
    enqueue(redis_client, "after")

    async def serve() -> None:
        async with open_broker(settings(redis_url)) as broker, anyio.create_task_group() as tasks:
            tasks.start_soon(CountingWorker(broker).serve)
            await until(lambda: queue_is_empty(redis_client))
            tasks.cancel_scope.cancel()

    anyio.run(serve)
    assert_served(redis_client, "before", 8)
    assert_served(redis_client, "after", 8)
    for key in redis_client.scan_iter("headrace:request:*"):
        assert redis_client.hget(key, "status") == b"finished"
        assert redis_client.ttl(key) > 0
