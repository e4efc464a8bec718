"""Two databases of one server: equal names and ids in both, and neither hears the other."""

import anyio
import pytest
import redis
from counting_worker import MODEL, CountingEngine, CountingWorker, settings, until

from headrace.clients import AsyncClient, AsyncHandle, Delta, Done
from headrace.worker.broker import open_broker

pytestmark = pytest.mark.anyio


class Reader:
    """Keeps what came of one request."""

    def __init__(self, handle: AsyncHandle) -> None:
        self.handle = handle
        self.tokens: list[int] = []
        self.end = ""

    async def run(self) -> None:
        async for event in self.handle.events():
            if isinstance(event, Delta):
                self.tokens += event.tokens
            elif isinstance(event, Done):
                self.end = event.finish_reason


async def test_streams_and_cancelling_stay_within_their_database(
    redis_url: str, redis_client: redis.Redis
) -> None:
    del redis_client  # it empties the server, all databases
    second_url = redis_url.removesuffix("0") + "1"
    async with (
        AsyncClient(redis_url, model=MODEL) as first,
        AsyncClient(second_url, model=MODEL) as second,
        open_broker(settings(redis_url, lease=5)) as first_broker,
        open_broker(settings(second_url, lease=5)) as second_broker,
        anyio.create_task_group() as tasks,
    ):
        one = CountingWorker(first_broker, CountingEngine(pause_at=3))
        other = CountingWorker(second_broker, CountingEngine(pause_at=6, epoch_weight=1000))
        tasks.start_soon(one.serve)
        tasks.start_soon(other.serve)
        readers = [Reader(await client.submit("p", id="same", max_tokens=8)) for client in (first, second)]
        for reader in readers:
            tasks.start_soon(reader.run)
        await until(lambda: readers[1].tokens == [1000 + position for position in range(6)])
        await until(lambda: len(readers[0].tokens) == 3)
        one.engine.pause_at = 5
        await until(lambda: len(readers[0].tokens) == 5)
        assert readers[0].tokens == [0, 1, 2, 3, 4]
        await readers[1].handle.cancel()
        await until(lambda: readers[1].end == "cancelled")
        one.engine.pause_at = None
        await until(lambda: readers[0].end)
        assert (readers[0].end, readers[0].tokens) == ("length", list(range(8)))
        assert len(readers[1].tokens) == 6
        tasks.cancel_scope.cancel()
