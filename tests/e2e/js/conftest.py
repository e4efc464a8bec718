"""The JavaScript client as its users get it, in a Node process, on the shared servers."""

from collections.abc import AsyncIterator, Iterator

import pytest
from fake_worker import FakeWorker
from js_client import JsClient, JsProcess, js_process
from node_packages import SUITE, build_client, install
from redis_servers import RedisServer, immortal_keys


@pytest.fixture(scope="session")
def packages() -> None:
    build_client()
    install(SUITE)


@pytest.fixture(scope="package")
async def node(packages: None) -> AsyncIterator[JsProcess]:
    del packages  # only wanted there
    async with js_process() as process:
        yield process


@pytest.fixture
async def client(node: JsProcess, redis_url: str) -> AsyncIterator[JsClient]:
    client = await node.open(redis_url, model="m", queueLimit=100)
    yield client
    await client.close()


@pytest.fixture
def worker(redis_url: str) -> Iterator[FakeWorker]:
    worker = FakeWorker(redis_url)
    yield worker
    worker.close()


@pytest.fixture(autouse=True)
def no_immortal_keys(request: pytest.FixtureRequest) -> Iterator[None]:
    names = {"redis_server", "private_server"}.intersection(request.fixturenames)
    servers: list[RedisServer] = [request.getfixturevalue(name) for name in names]
    yield
    for server in servers:
        with server.connect() as connection:
            assert immortal_keys(connection) == [], "keys without a TTL were left behind"
