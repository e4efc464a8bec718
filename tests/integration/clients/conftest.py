"""A fake worker and clients on the shared server."""

from collections.abc import AsyncIterator, Iterator

import pytest
from fake_worker import FakeWorker

from headrace.clients import AsyncClient, Client


@pytest.fixture
def worker(redis_url: str) -> Iterator[FakeWorker]:
    worker = FakeWorker(redis_url)
    yield worker
    worker.close()


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(redis_url, model="m", queue_limit=100) as client:
        yield client


@pytest.fixture
def sync_client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url, model="m", queue_limit=100) as client:
        yield client
