"""Every integration test fails that leaves a key without a TTL, other than queues and dead letters."""

from collections.abc import Iterator

import pytest
from redis_servers import RedisServer, immortal_keys


@pytest.fixture(autouse=True)
def no_immortal_keys(request: pytest.FixtureRequest) -> Iterator[None]:
    names = {"redis_server", "private_server"}.intersection(request.fixturenames)
    servers: list[RedisServer] = [request.getfixturevalue(name) for name in names]
    yield
    for server in servers:
        with server.connect() as client:
            assert immortal_keys(client) == [], "keys without a TTL were left behind"
