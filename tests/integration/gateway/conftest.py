"""A gateway, and a worker without a model behind it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import httpx
import pytest
from fake_worker import FakeWorker
from gateway_server import RunningGateway, announce, running_gateway, running_model
from redis_servers import BINARIES, Kind, RedisServer, immortal_keys


@pytest.fixture
def redis_server(_shared_servers: dict[Kind, RedisServer]) -> Iterator[RedisServer]:
    """One kind: HTTP is the same over both. What runs scripts of the gateway asks for ``every_server``."""
    server = next(iter(_shared_servers.values()))
    with server.connect() as client:
        client.flushall()
        yield server
        client.flushall()


@pytest.fixture(params=list(BINARIES))
def every_server(
    request: pytest.FixtureRequest, _shared_servers: dict[Kind, RedisServer]
) -> Iterator[RedisServer]:
    server = _shared_servers[request.param]
    with server.connect() as client:
        client.flushall()
        yield server
        assert immortal_keys(client) == []
        client.flushall()


@pytest.fixture(scope="package")
def _gateways() -> Iterator[Callable[[str], RunningGateway]]:
    with ExitStack() as stack:

        @cache
        def start(redis_url: str) -> RunningGateway:
            return stack.enter_context(running_gateway(redis_url))

        yield start


@pytest.fixture
def gateway(redis_url: str, _gateways: Callable[[str], RunningGateway]) -> RunningGateway:
    """One for all tests: it keeps nothing but what it saw of the workers in the last second."""
    running = _gateways(redis_url)
    running.gateway.worker_directory._scanned = -1e9
    return running


@pytest.fixture
def model(redis_url: str) -> Iterator[FakeWorker]:
    """Model ``m``, which answers with the prompt's words."""
    with running_model(redis_url) as worker:
        yield worker


@pytest.fixture
def worker(redis_url: str) -> Iterator[FakeWorker]:
    """Model ``m``, alive, which does only what the test tells it."""
    worker = FakeWorker(redis_url)
    announce(worker)
    yield worker
    worker.close()


@pytest.fixture
def http(gateway: RunningGateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=30) as client:
        yield client
