"""TLS with a certificate authority of one's own, and passwords that stay out of every message."""

import logging
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
import redis
from counting_worker import MODEL, CountingWorker, settings, until
from redis_cluster import three_masters
from redis_servers import RedisServer, free_port, running

from headrace.clients import AsyncClient, Unavailable
from headrace.worker.broker import open_broker

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``ca.pem``, and ``server.pem`` with ``server.key`` for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("tls")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    for command in (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -keyout ca.key -out ca.pem -subj /CN=ca",
        "req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=server",
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out server.pem -extfile names",
    ):
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def tls_options(certificates: Path) -> dict[str, str]:
    return {
        "tls-ca-cert-file": str(certificates / "ca.pem"),
        "tls-cert-file": str(certificates / "server.pem"),
        "tls-key-file": str(certificates / "server.key"),
        "tls-auth-clients": "no",
    }


@pytest.fixture
def encrypted(tmp_path: Path, tls_options: dict[str, str]) -> Iterator[tuple[RedisServer, str]]:
    """A server, and the URL of its port for TLS, without options. The wheel's Valkey has no TLS."""
    port = free_port()
    options = {"tls-port": str(port), **tls_options}
    with running(RedisServer("redis", tmp_path, options=options)) as server:
        yield server, f"rediss://127.0.0.1:{port}/0"


async def test_client_and_worker_go_through_tls(
    encrypted: tuple[RedisServer, str], certificates: Path
) -> None:
    _, url = encrypted
    await assert_served(f"{url}?ssl_ca_certs={certificates / 'ca.pem'}")


async def test_a_cluster_is_gone_through_by_tls(
    tls_options: dict[str, str], certificates: Path, tmp_path: Path
) -> None:
    """At the addresses that its nodes name for it, which are other than those without."""
    with three_masters("redis", tmp_path, tls_options) as cluster:
        await assert_served(f"{cluster.tls_url}?ssl_ca_certs={certificates / 'ca.pem'}")
        async with AsyncClient(cluster.tls_url, model=MODEL, patience=0.3) as stranger:
            with pytest.raises(Unavailable, match=r"(?i)certificate|cluster"):
                await stranger.submit("p")


async def test_sentinel_and_its_master_are_spoken_to_by_tls(
    tls_options: dict[str, str], certificates: Path, tmp_path: Path
) -> None:
    ports = [free_port(), free_port()]
    of_master, of_sentinel = ({"tls-port": str(port), **tls_options} for port in ports)
    of_sentinel["tls-replication"] = "yes"
    with (
        running(RedisServer("redis", tmp_path / "master", options=of_master)),
        running(RedisServer("redis", tmp_path / "sentinel", options=of_sentinel, sentinel=True)) as sentinel,
        sentinel.connect() as client,
    ):
        client.execute_command("SENTINEL", "MONITOR", "main", "127.0.0.1", ports[0], 1)
        url = f"rediss+sentinel://127.0.0.1:{ports[1]}/main/0"
        await assert_served(f"{url}?ssl_ca_certs={certificates / 'ca.pem'}")
        async with AsyncClient(url, model=MODEL, patience=0.3) as stranger:
            with pytest.raises(Unavailable):
                await stranger.submit("p")


async def assert_served(trusted: str) -> None:
    async with (
        AsyncClient(trusted, model=MODEL) as client,
        open_broker(settings(trusted)) as broker,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(CountingWorker(broker).serve)
        handle = await client.submit("p", max_tokens=10)
        assert (await handle.result()).tokens == list(range(10))
        tasks.cancel_scope.cancel()


async def test_a_server_with_an_unknown_certificate_is_not_spoken_to(
    encrypted: tuple[RedisServer, str], caplog: pytest.LogCaptureFixture
) -> None:
    server, url = encrypted
    async with AsyncClient(url, model=MODEL, patience=0.3) as client:
        with pytest.raises(Unavailable, match=r"(?i)certificate"):
            await client.submit("p")
    async with open_broker(settings(url)) as broker, anyio.create_task_group() as tasks:
        tasks.start_soon(broker.run)
        await until(lambda: broker.counters.retries["connection"] > 1)
        tasks.cancel_scope.cancel()
    assert "certificate" in caplog.text.lower()
    with server.connect() as plain:
        assert plain.dbsize() == 0


async def test_a_wrong_password_is_reported_at_once_and_never_shown(
    redis_server: RedisServer, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = "hunter2-of-the-test"
    url = f"redis://default:{wrong}@127.0.0.1:{redis_server.port}/0"
    redis_client.config_set("requirepass", "right")
    try:
        async with AsyncClient(url, model=MODEL, patience=60) as client:
            with anyio.fail_after(30), pytest.raises(Unavailable, match="refuses") as refusal:
                await client.submit("p")
        config = settings(url)
        async with open_broker(config) as broker, anyio.create_task_group() as tasks:
            tasks.start_soon(broker.run)
            await until(lambda: broker.counters.retries["denied"] > 3)
            tasks.cancel_scope.cancel()
        shown = [str(refusal.value), repr(refusal.value), repr(config), caplog.text]
        assert not any(wrong in text for text in shown)
        assert "WRONGPASS" in caplog.text or "invalid username" in caplog.text
    finally:
        redis_client.config_set("requirepass", "")
