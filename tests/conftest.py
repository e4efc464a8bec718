"""Servers for all tests. A test that asks for ``redis_url`` runs once on Valkey and once on Redis.

``redis_server`` (and ``redis_url``, ``redis_client``) is one shared server per kind, emptied around each
test: not to be killed. ``private_server`` is the test's own, durable, to kill, pause and start again.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import redis
from redis_servers import BINARIES, Kind, RedisServer, running

pytest_plugins = ["left_out"]

# Triton reads it when a kernel is defined, and the first test that imports one may be any: with it, kernels
# are ordinary Python on CPU tensors.
os.environ["TRITON_INTERPRET"] = "1"

# Of several processes side by side, each has one core at best.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell lets what it starts in the background ignore control-C, and that is inherited: commands that tests
# interrupt would not notice.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two a core, for most tests wait most of the time; none beside this one for files that are named."""
    if any(".py" in argument for argument in config.args):
        return 0
    return min(2 * (os.cpu_count() or 1), 8)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def _shared_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Kind, RedisServer]]:
    with ExitStack() as stack:
        servers = {kind: RedisServer(kind, tmp_path_factory.mktemp(kind)) for kind in BINARIES}
        for server in servers.values():
            stack.enter_context(running(server))
        yield servers


@pytest.fixture(params=list(BINARIES))
def redis_server(
    request: pytest.FixtureRequest, _shared_servers: dict[Kind, RedisServer]
) -> Iterator[RedisServer]:
    server = _shared_servers[request.param]
    with server.connect() as client:
        client.flushall()
        yield server
        client.flushall()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    return redis_server.url


@pytest.fixture
def redis_client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A plain synchronous client, replies as bytes."""
    with redis_server.connect() as client:
        yield client


@pytest.fixture(params=list(BINARIES))
def private_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisServer]:
    with running(RedisServer(request.param, tmp_path_factory.mktemp("private"), durable=True)) as server:
        yield server
