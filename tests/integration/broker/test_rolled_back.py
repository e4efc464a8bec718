"""A server that comes back without its last second: an end that it forgot is told again before it counts."""

import anyio
import pytest
import redis
from counting_worker import KEYS, enqueue, queue_is_empty, settings, state_of, until

from headrace.worker.broker import open_broker
from headrace.worker.broker.entries import Unrun

pytestmark = pytest.mark.anyio


async def test_an_entry_is_not_settled_while_its_request_has_not_ended(
    redis_url: str, redis_client: redis.Redis
) -> None:
    """Otherwise the request would run for ever, in the books only: nobody would have its entry."""
    enqueue(redis_client, "a", max_tokens=3)
    async with open_broker(settings(redis_url)) as broker, anyio.create_task_group() as tasks:
        intake = broker.intake
        intake.offer((1, 1, 1))
        await intake.pull()
        await intake.claim()
        claim = await intake.next_claim()
        before = redis_client.dump(KEYS.request("a"))
        ending = Unrun("a", claim.epoch, "length", [0, 1, 2], "w0 w1 w2 ")
        broker.outbox.put([], [ending])
        assert await broker.outbox.flush() is None
        assert state_of(redis_client, "a")["status"] == "finished"
        # The server restarts as it was before the end; the worker has the entry to settle still.
        redis_client.restore(KEYS.request("a"), 60_000, before, replace=True)
        redis_client.delete(KEYS.events("a"))
        assert await broker.outbox.flush() is None
        assert not queue_is_empty(redis_client)
        tasks.start_soon(broker.outbox.run)
        await until(lambda: queue_is_empty(redis_client))
        tasks.cancel_scope.cancel()
    assert state_of(redis_client, "a")["status"] == "finished"
    assert state_of(redis_client, "a")["finish_reason"] == "length"
    assert redis_client.xlen(KEYS.events("a")) == 2
