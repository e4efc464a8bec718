"""``headrace top`` and the overview behind it."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable

import pytest
import redis
import typer
from typer.testing import CliRunner, Result
from waiting import eventually_sync

from headrace.clients import AsyncClient
from headrace.clients.cli.top import top
from headrace.clients.overview import Monitor
from headrace.clients.protocol import GROUP, Keys
from headrace.clients.queue_status import QueueStatus

APP = typer.Typer()
APP.command()(top)
KEYS = Keys()
Run = Callable[..., Result]


@pytest.fixture
def run(redis_url: str) -> Run:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(APP, ["--redis", redis_url, *arguments])

    return run


def heartbeat(server: redis.Redis, model: str, name: str, **fields: object) -> None:
    now = server.time()[0] * 1000
    record = {
        "model": model,
        "version": "0.1.0",
        "running": 12,
        "waiting": 3,
        "blocks_total": 400,
        "blocks_free": 100,
        "tokens_per_second": 1234.5,
        "room": 8,
        "started": now - 90_000,
        "updated": now,
    }
    server.hset(KEYS.worker(model, name), mapping=record | fields)
    server.expire(KEYS.worker(model, name), 60)


def test_an_empty_server_has_nothing_to_show(run: Run) -> None:
    result = run()
    assert result.exit_code == 0
    assert "No worker is alive." in result.stdout
    assert json.loads(run("--json").stdout) == {"workers": [], "queues": [], "complete": True}


def test_workers_and_queues_are_shown(run: Run, redis_client: redis.Redis) -> None:
    heartbeat(redis_client, "org/model", "gpu-0")
    heartbeat(redis_client, "org/model", "gpu-1", running=30, tokens_per_second=765.5)
    redis_client.xadd(KEYS.queue("org/model", "high", 3), {"r": b"x"})
    lines = run("--once").stdout.splitlines()
    words = {line.split()[0]: line.split() for line in lines if line.strip()}
    assert words["gpu-0"][1:4] == ["org/model", "12", "3"]
    assert words["gpu-0"][-6:] == ["75%", "of", "400", "1,234.5", "1.5", "min"]
    assert words["all"] == ["all", "42", "6", "2,000.0"]
    assert words["org/model"][1:4] == ["high", "1", "0"]


@pytest.mark.anyio
async def test_queues_tell_waiting_from_taken_over_all_lanes(
    client: AsyncClient, redis_client: redis.Redis
) -> None:
    high, low = KEYS.queue("m", "high", 0), KEYS.queue("m", "low", 15)
    long_ago = redis_client.time()[0] * 1000 - 120_000
    redis_client.xadd(low, {"r": b"x"}, id=f"{long_ago}-0")
    redis_client.xadd(high, {"r": b"x"}, id=f"{long_ago}-0")
    redis_client.xadd(high, {"r": b"x"}, id=f"{long_ago + 60_000}-0")
    redis_client.xadd(KEYS.queue("m", "high", 7), {"r": b"x"})
    redis_client.xgroup_create(high, GROUP, id="0")
    redis_client.xreadgroup(GROUP, "w", {high: ">"}, count=1)
    overview = await Monitor(client.connection, client.keys).look()
    high_status, normal_status, low_status = overview.queues
    assert (high_status.waiting, high_status.delivered) == (2, 1)
    assert high_status.oldest is not None and 59 <= high_status.oldest < 100
    assert normal_status == QueueStatus("m", "normal", 0, 0, None)
    assert (low_status.waiting, low_status.delivered) == (1, 0)
    assert low_status.oldest is not None and 119 <= low_status.oldest < 160


@pytest.mark.anyio
async def test_a_worker_whose_heartbeat_expired_is_gone(
    client: AsyncClient, redis_client: redis.Redis
) -> None:
    heartbeat(redis_client, "m", "gpu-0")
    monitor = Monitor(client.connection, client.keys)
    assert [worker.name for worker in (await monitor.look()).workers] == ["gpu-0"]
    redis_client.delete(KEYS.worker("m", "gpu-0"))
    assert (await monitor.look()).workers == []


@pytest.mark.anyio
async def test_one_model_and_one_namespace_only(client: AsyncClient, redis_client: redis.Redis) -> None:
    heartbeat(redis_client, "m", "gpu-0")
    heartbeat(redis_client, "other", "gpu-0")
    redis_client.xadd(Keys("staging").queue("m", "high", 0), {"r": b"x"})
    redis_client.xadd(KEYS.queue("other", "high", 0), {"r": b"x"})
    overview = await Monitor(client.connection, client.keys, "m").look()
    assert [(worker.model, worker.name) for worker in overview.workers] == [("m", "gpu-0")]
    assert {queue.model for queue in overview.queues} == {"m"}
    assert sum(queue.waiting for queue in overview.queues) == 0


@pytest.mark.anyio
async def test_a_large_key_space_is_searched_in_bounded_steps(
    client: AsyncClient, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.clients.overview._KEYS_PER_SCAN", 10)
    monkeypatch.setattr("headrace.clients.overview._SCANS_PER_LOOK", 5)
    for number in range(400):
        redis_client.set(KEYS.request(f"r{number}"), "x", ex=60)
    heartbeat(redis_client, "m", "gpu-0")
    monitor = Monitor(client.connection, client.keys)
    before = redis_client.info("commandstats")["cmdstat_scan"]["calls"]
    overview = await monitor.look()
    assert redis_client.info("commandstats")["cmdstat_scan"]["calls"] - before == 5
    assert not overview.complete
    for _ in range(100):
        if (overview := await monitor.look()).complete:
            break
    assert [worker.name for worker in overview.workers] == ["gpu-0"]


@pytest.mark.anyio
async def test_a_heartbeat_of_another_version_does_no_harm(
    client: AsyncClient, redis_client: redis.Redis
) -> None:
    key = KEYS.worker("m", "odd\nname")
    redis_client.hset(key, mapping={"running": "many", "blocks_total": "", "mood": b"\xff"})
    redis_client.expire(key, 60)
    (worker,) = (await Monitor(client.connection, client.keys).look()).workers
    assert (worker.running, worker.cache_use, worker.age) == (0, 0.0, None)


def test_an_unreachable_server_is_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AsyncClient.__init__, "__kwdefaults__", {
        **AsyncClient.__init__.__kwdefaults__, "patience": 0.2,
    })  # fmt: skip
    result = run("--redis", "redis://127.0.0.1:1/0", "--once")
    assert result.exit_code == 1
    assert "cannot be reached" in result.stderr


def test_on_a_terminal_it_is_live_until_interrupted(redis_url: str, redis_client: redis.Redis) -> None:
    heartbeat(redis_client, "m", "gpu-0")
    program = "import typer; from headrace.clients.cli.top import top; typer.run(top)"
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program, "--redis", redis_url, "--interval", "0.1"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30"},
        start_new_session=True,
    )
    os.close(terminal)
    screen = bytearray()

    def shows(text: bytes) -> bool:
        screen.extend(os.read(controller, 65536))
        return text in screen

    eventually_sync(lambda: shows(b"gpu-0"))
    heartbeat(redis_client, "m", "gpu-late")
    eventually_sync(lambda: shows(b"gpu-late"))
    process.send_signal(2)
    while process.poll() is None:
        try:
            os.read(controller, 65536)
        except OSError:
            break
    assert process.wait(timeout=60) == 0
    os.close(controller)
