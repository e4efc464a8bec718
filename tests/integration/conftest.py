"""Every integration test fails that leaves tasks or connections of its event loop, or a key without a TTL.

Queues and dead letters may stay. Blocks of the cache are looked at where a worker ends: see ``live_worker``.
"""

from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from leftovers import Leftovers, watched_connections
from redis_servers import RedisServer, immortal_keys


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    names = {"redis_server", "private_server"}.intersection(request.fixturenames)
    servers: list[RedisServer] = [request.getfixturevalue(name) for name in names]
    if "anyio_backend" in request.fixturenames:
        request.getfixturevalue("_loop_is_left_clean")
    yield
    for server in servers:
        with server.connect() as client:
            assert immortal_keys(client) == [], "keys without a TTL were left behind"


@pytest.fixture
async def _loop_is_left_clean(_connections: Callable[[], set[object]]) -> AsyncIterator[None]:
    leftovers = Leftovers(_connections)
    yield
    await leftovers.check()


@pytest.fixture(scope="session")
def _connections() -> Iterator[Callable[[], set[object]]]:
    with watched_connections() as connected:
        yield connected
