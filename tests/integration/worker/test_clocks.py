"""Moments are Redis's: a worker on a host whose clock is hours away serves as any other."""

from pathlib import Path
from typing import Any

import anyio
import pytest
import redis
from simulated_model import MODEL, uninterrupted
from waiting import eventually
from worker_processes import worker_processes

from headrace.clients import AsyncClient, AsyncHandle
from headrace.clients.protocol import Keys, make_request

pytestmark = pytest.mark.anyio

KEYS = Keys()
HOUR = 3_600_000


def redis_ms(client: redis.Redis) -> int:
    seconds, microseconds = client.time()
    return seconds * 1000 + microseconds // 1000


async def claimed(handle: AsyncHandle) -> None:
    async def is_claimed() -> bool:
        return (await handle.status()).status != "queued"

    await eventually(is_claimed)


@pytest.mark.parametrize("hours", [2, -2], ids=["ahead", "behind"])
async def test_a_wrong_clock_changes_no_deadline_no_order_and_no_moment(
    redis_url: str, redis_client: redis.Redis, tmp_path: Path, hours: int
) -> None:
    settings = {"redis": redis_url, "max_sequences": 1, "lease": 60.0, "ageing": 3600.0}
    before = redis_ms(redis_client)
    async with (
        AsyncClient(redis_url, model=MODEL) as client,
        worker_processes("simulated", tmp_path) as workers,
    ):
        worker = await workers.start(settings, step_seconds=0.05, hours=hours)
        await worker.ready.wait()
        deadline = redis_ms(redis_client) + 1000
        expiring = await client.submit("abc", max_tokens=400, ignore_eos=True, deadline=deadline)
        expired = await expiring.result()
        busy = await client.submit("abc", max_tokens=400, ignore_eos=True, deadline=before + HOUR)
        await claimed(busy)
        low = await client.submit("abc", max_tokens=3, priority="low", deadline=before + HOUR)
        high = await client.submit("abc", max_tokens=3, priority="high", deadline=before + HOUR)
        await busy.cancel()
        results = [expired, await busy.result(), await high.result(), await low.result()]
        record: Any = redis_client.hgetall(KEYS.worker(MODEL, worker.name))
        assert await worker.stop() == 0, workers.log.read_text()
    after = redis_ms(redis_client)
    assert [result.finish_reason for result in results] == ["expired", "cancelled", "length", "length"]
    assert expired.timings.finished is not None
    assert expired.timings.finished >= deadline
    moments = [int(record[b"updated"]), int(record[b"started"])]
    for result in results:
        times = result.timings
        moments += [times.created or 0, times.started or 0, times.finished or 0]
        assert times.waited is not None
        assert times.waited >= 0
        logged: Any = redis_client.xrange(KEYS.events(result.id))
        moments += [int(entry_id.partition(b"-")[0]) for entry_id, _ in logged]
    assert all(before <= moment <= after for moment in moments), (before, moments, after)
    starts = [result.timings.started or 0 for result in results]
    assert starts == sorted(starts), "not in the order of their priorities"


@pytest.mark.parametrize(("first", "second"), [(2, -2), (-2, 2)])
async def test_a_lease_is_as_long_whatever_the_clocks_of_its_owner_and_its_heir(
    redis_url: str, tmp_path: Path, first: int, second: int
) -> None:
    settings = {"redis": redis_url, "lease": 5.0}
    kept = make_request(id="kept", model=MODEL, prompt="abc", max_tokens=40, ignore_eos=True)
    passed_on = make_request(id="passed_on", model=MODEL, prompt="abcd", max_tokens=400, ignore_eos=True)
    async with (
        AsyncClient(redis_url, model=MODEL) as client,
        worker_processes("simulated", tmp_path) as workers,
    ):
        owner = await workers.start(settings, step_seconds=0.05, hours=first)
        handles = await client.submit_all([passed_on, kept])
        for handle in handles:
            await claimed(handle)
        heir = await workers.start(settings, step_seconds=0.0, hours=second)
        await heir.ready.wait()  # idle, so it looks at once for what others have left
        assert (await handles[1].result()).tokens == uninterrupted(kept).tokens
        for handle in handles:
            status = await handle.status()
            assert status.worker is not None
            assert (status.worker.partition(".")[0], status.attempts) == (owner.name, 1)
        await owner.kill()
        with anyio.fail_after(60):
            assert (await handles[0].result()).tokens == uninterrupted(passed_on).tokens
        status = await handles[0].status()
        assert status.worker is not None
        assert (status.worker.partition(".")[0], status.attempts) == (heir.name, 2)
        assert await heir.stop() == 0, workers.log.read_text()
