"""What a worker answers to probes, by what its loop says."""

import socket
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler

import anyio
import pytest
from prometheus_client import CollectorRegistry

from headrace.worker.health import Health
from headrace.worker.operator_port import operator_port


class Loop:
    """What a serve loop says of itself."""

    stepping_for = 0.0
    renewed_at = float("-inf")
    draining = False

    def tell(self, health: Health) -> None:
        health.serving(lambda: self.stepping_for, lambda: self.renewed_at, lambda: self.draining)


def test_a_worker_that_loads_is_alive_and_not_ready() -> None:
    health = Health(lease=15)
    assert (health.liveness(), health.readiness()) == ("alive", "loading")


def test_ready_is_who_redis_has_heard_of_within_a_lease() -> None:
    health, loop = Health(lease=15), Loop()
    loop.tell(health)
    assert (health.liveness(), health.readiness()) == ("alive", "no_redis")
    loop.renewed_at = float("inf")
    assert health.readiness() == "ready"
    loop.draining = True
    assert (health.liveness(), health.readiness()) == ("alive", "draining")


def test_a_step_that_does_not_end_is_no_life() -> None:
    health, loop = Health(lease=15, stalled=100), Loop()
    loop.renewed_at = float("inf")
    loop.tell(health)
    loop.stepping_for = 99.9
    assert health.progressing
    assert health.liveness() == "alive"
    loop.stepping_for = 100
    assert not health.progressing
    assert (health.liveness(), health.readiness()) == ("engine_stalled", "engine_stalled")


@pytest.mark.anyio
async def test_a_loop_that_does_not_turn_is_no_life() -> None:
    health, loop = Health(lease=15, stalled=0.0), Loop()
    loop.renewed_at = float("inf")
    loop.tell(health)
    loop.stepping_for = -1
    async with anyio.create_task_group() as tasks:
        assert health.liveness() == "alive"
        tasks.start_soon(health.beat)
        await anyio.sleep(0.01)
        assert (health.liveness(), health.readiness()) == ("loop_stalled", "loop_stalled")
        tasks.cancel_scope.cancel()


def status_of(port: int, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_the_port_tells_status_by_code() -> None:
    health, loop = Health(lease=15), Loop()
    with operator_port("127.0.0.1", 0, CollectorRegistry(), health) as port:
        assert status_of(port, "/healthz") == (200, b'{"status": "alive"}')
        assert status_of(port, "/readyz") == (503, b'{"status": "loading"}')
        loop.renewed_at = float("inf")
        loop.tell(health)
        assert status_of(port, "/readyz?verbose") == (200, b'{"status": "ready"}')
        loop.stepping_for = float("inf")
        assert status_of(port, "/healthz") == (503, b'{"status": "engine_stalled"}')
        assert status_of(port, "/metrics")[0] == 200
        assert status_of(port, "/../etc/passwd")[0] == 404
    assert not [thread for thread in threading.enumerate() if thread.name == "operator port"]


def test_the_port_answers_without_waiting_for_more_to_send(monkeypatch: pytest.MonkeyPatch) -> None:
    options: list[int] = []
    answer = BaseHTTPRequestHandler.send_response

    def looked_at(handler: BaseHTTPRequestHandler, code: int, message: str | None = None) -> None:
        options.append(handler.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        answer(handler, code, message)

    monkeypatch.setattr(BaseHTTPRequestHandler, "send_response", looked_at)
    with operator_port("127.0.0.1", 0, CollectorRegistry(), Health(lease=15)) as port:
        status_of(port, "/healthz")
    assert options == [1]


def test_a_port_that_is_taken_is_told() -> None:
    with (
        operator_port("127.0.0.1", 0, CollectorRegistry(), Health(lease=15)) as port,
        pytest.raises(OSError, match="in use"),
        operator_port("127.0.0.1", port, CollectorRegistry(), Health(lease=15)),
    ):
        pass
