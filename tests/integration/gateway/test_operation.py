"""What operators see: health, metrics, log lines, traces, the system at a glance, the page."""

import json
import logging
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
from fake_worker import FakeWorker
from gateway_server import RunningGateway, announce, running_gateway, silence
from httpx_sse import connect_sse
from prometheus_client.parser import text_string_to_metric_families
from redis_servers import RedisServer
from typer import Typer
from typer.testing import CliRunner
from waiting import eventually_sync

from headrace.clients.cli.gateway import gateway, gateway_key
from headrace.clients.gateway.access.api_keys import make_key
from headrace.clients.gateway.operation.logs import JsonFormatter

ASK = {"model": "m", "prompt": "a b secret-prompt"}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_health(http: httpx.Client) -> None:
    assert http.get("/healthz").json() == {"status": "alive"}
    assert http.get("/readyz").json() == {"status": "ready"}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_connections_send_at_once(redis_url: str, host: str) -> None:
    """A small piece after another would wait for the reader's acknowledgement, some 40 ms, by Nagle."""
    with running_gateway(redis_url, host=host) as gateway, httpx.Client(base_url=gateway.url) as http:
        assert http.get("/healthz").status_code == 200
        (connection,) = gateway.server.server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_probes_while_redis_is_away(private_server: RedisServer) -> None:
    with (
        running_gateway(private_server.url) as gateway,
        httpx.Client(base_url=gateway.url, timeout=30) as http,
    ):
        assert http.get("/readyz").status_code == 200
        assert samples(http)["headrace_gateway_redis_up",] == 1
        private_server.kill()
        assert http.get("/readyz").status_code == 503
        assert http.get("/healthz").status_code == 200, "a restart would not bring Redis back"
        found = eventually_sync(lambda: (seen := samples(http))["headrace_gateway_redis_up",] == 0 and seen)
        assert not [key for key in found if key[0].startswith(("headrace_queue", "headrace_workers"))]
        private_server.start()
        eventually_sync(lambda: http.get("/readyz").status_code == 200)
        gateway.gateway.slots.drain()
        assert http.get("/readyz").json()["error"]["code"] == "draining"


def test_probes_ask_by_address(redis_url: str) -> None:
    with running_gateway(redis_url, allowed_hosts=("chat.example",)) as gateway:
        by_address = {"Host": "10.0.0.7:8000"}
        for path, status in (("/healthz", 200), ("/readyz", 200), ("/metrics", 400), ("/v1/models", 400)):
            assert httpx.get(f"{gateway.url}{path}", headers=by_address).status_code == status
        assert httpx.get(f"{gateway.url}/metrics", headers={"Host": "chat.example"}).status_code == 200


def test_metrics_tell_of_queues_and_workers(redis_url: str, worker: FakeWorker) -> None:
    with running_gateway(redis_url) as gateway, httpx.Client(base_url=gateway.url) as http:
        http.post("/v1/requests", json=ASK | {"priority": "low"})
        time.sleep(0.01)  # an age of a millisecond
        found = samples(http)
        assert found["headrace_queue_waiting", "low", "m"] == 1
        assert found["headrace_queue_waiting", "high", "m"] == 0
        assert found["headrace_queue_oldest_seconds", "low", "m"] > 0
        assert found["headrace_queue_oldest_seconds", "high", "m"] == 0
        assert found["headrace_workers", "m"] == 1
        silence(worker)
        eventually_sync(lambda: samples(http)["headrace_workers", "m"] == 0)
        assert samples(http)["headrace_queue_waiting", "low", "m"] == 1, "now it matters most"
        worker.take()


def samples(http: httpx.Client) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(http.get("/metrics").text)
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics(redis_url: str, model: FakeWorker) -> None:
    del model
    with running_gateway(redis_url) as gateway, httpx.Client(base_url=gateway.url) as http:
        http.post("/v1/completions", json=ASK | {"stream": True})
        http.post("/v1/completions", json=ASK)
        http.post("/v1/completions", json=ASK | {"model": "no"})
        http.get("/v1/some/path/that/is/nobodys")
        found = samples(http)
        http_requests = "headrace_gateway_http_requests_total"
        assert found[http_requests, "/v1/completions", "200", "POST"] == 2
        assert found[http_requests, "/v1/completions", "404", "POST"] == 1
        assert found["headrace_gateway_requests_submitted_total", "m"] == 2
        assert found["headrace_gateway_tokens_delivered_total",] == 3
        assert found["headrace_gateway_time_to_first_token_seconds_count",] == 1
        assert found["headrace_gateway_refused_total", "model_not_found"] == 1
        assert found["headrace_gateway_streams",] == 0
        assert not [key for key in found if "nobodys" in str(key)], "paths are no labels"


def test_log_lines_and_traces(
    http: httpx.Client, model: FakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    del model
    caplog.set_level(logging.INFO, "headrace.gateway.access")
    answer = http.post("/v1/completions", json=ASK, headers={"x-request-id": "abc-1", "traceparent": TRACE})
    assert answer.headers["x-request-id"] == "abc-1"
    while not caplog.records:
        pass
    line = json.loads(JsonFormatter().format(caplog.records[0]))
    assert (line["http_id"], line["request"], line["status"]) == ("abc-1", answer.json()["id"], 200)
    assert line["trace"].startswith(TRACE[:36])
    assert "secret-prompt" not in json.dumps(line)
    for bad in ("x" * 100, "a b", 'a"b'):
        assert http.get("/healthz", headers={"x-request-id": bad}).headers["x-request-id"] != bad


@pytest.mark.parametrize(
    "given",
    ["", "nonsense", "00-" + "0" * 32 + "-b7ad6b7169203331-01", "ff" + TRACE[2:], TRACE.upper(), TRACE[:-3]],
)
def test_a_bad_trace_is_replaced(http: httpx.Client, worker: FakeWorker, given: str) -> None:
    with http.stream("POST", "/v1/completions", json=ASK | {"stream": True}, headers={"traceparent": given}):
        trace = worker.take().trace
    assert trace is not None
    version, trace_id, span, _ = trace.split("-")
    assert (version, len(trace_id), len(span)) == ("00", 32, 16)
    assert trace_id not in given
    assert int(trace_id, 16)


class TestSystem:
    SEQUENCE: ClassVar = {
        "id": "r1", "priority": 1, "state": "prefill", "prompt": 100, "cached": 16, "computed": 40,
        "output": 0, "limit": 256, "blocks": 3,
    }  # fmt: skip

    def heartbeat(self, worker: FakeWorker, name: str, **more: Any) -> None:
        fields = {
            "version": "1", "running": 1, "waiting": 2, "blocks_total": 100, "blocks_free": 75,
            "tokens_per_second": 12.5, "block_size": 16, "block_stride": 1, "block_map": "AA.",
            "sequences": json.dumps([self.SEQUENCE]), "first_tokens": json.dumps([100, 200, 300, 400]),
        }  # fmt: skip
        announce(worker, name, **{**fields, **more})

    def test_view(self, redis_url: str, worker: FakeWorker) -> None:
        self.heartbeat(worker, "w1")
        self.heartbeat(worker, "w2", sequences="[[]]", first_tokens="nonsense")
        with running_gateway(redis_url) as gateway, httpx.Client(base_url=gateway.url) as http:
            for priority in ("high", "low", "low"):
                http.post("/v1/requests", json=ASK | {"priority": priority})
            view = http.get("/v1/system").json()
        waiting = {(queue["model"], queue["priority"]): queue["waiting"] for queue in view["queues"]}
        assert (waiting["m", "low"], waiting["m", "normal"], waiting["m", "high"]) == (2, 0, 1)
        by_name = {found["name"]: found for found in view["workers"]}
        assert by_name["w1"]["sequences"] == [self.SEQUENCE]
        assert by_name["w1"]["block_map"] == "AA."
        assert by_name["w2"]["sequences"] == []
        assert (view["tokens_per_second"], view["blocks_total"], view["blocks_free"]) == (25.0, 200, 150)
        assert view["time_to_first_token"] == {"count": 4, "p50": 0.2, "p90": 0.4, "p99": 0.4}

    def test_live(self, redis_url: str, worker: FakeWorker) -> None:
        with running_gateway(redis_url) as gateway, httpx.Client(base_url=gateway.url, timeout=30) as http:
            with connect_sse(http, "GET", "/v1/system/events", params={"interval": 0.5}) as source:
                events = source.iter_sse()
                assert json.loads(next(events).data)["queues"] is not None
                http.post("/v1/requests", json=ASK)
                for event in events:
                    if any(queue["waiting"] for queue in json.loads(event.data)["queues"]):
                        break
            worker.take()

    def test_only_for_operators(self, redis_url: str, tmp_path: Path) -> None:
        keys = {admin: make_key("acme", admin=admin) for admin in (True, False)}
        path = tmp_path / "keys.toml"
        path.write_text("\n".join(table for _, table in keys.values()))
        with running_gateway(redis_url, keys_file=path) as gateway:
            for url in (f"{gateway.v1}/system", f"{gateway.v1}/system/events"):
                answer = httpx.get(url, headers={"Authorization": f"Bearer {keys[False][0]}"})
                assert answer.status_code == 403
                assert httpx.get(url).status_code == 401
            answer = httpx.get(f"{gateway.v1}/system", headers={"Authorization": f"Bearer {keys[True][0]}"})
            assert answer.status_code == 200


class TestProcess:
    """The command itself, as an operator runs it."""

    COMMAND = (
        "import typer; from headrace.clients.cli.gateway import gateway;"
        "app = typer.Typer(); app.command()(gateway); app()"
    )

    def test_starts_logs_and_ends_by_sigterm_with_a_stream_open(
        self, redis_url: str, worker: FakeWorker
    ) -> None:
        del worker
        arguments = ["--redis", redis_url, "--port", "0", "--log-format", "json", "--grace", "5"]
        process = subprocess.Popen(
            [sys.executable, "-c", self.COMMAND, *arguments], stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        try:
            lines = [json.loads(process.stderr.readline()) for _ in range(2)]
            url = lines[0]["message"].removeprefix("gateway: ")
            with httpx.Client(base_url=url, timeout=30, transport=httpx.HTTPTransport(retries=5)) as http:
                request_id = http.post("/v1/requests", json=ASK).json()["id"]
                with http.stream("GET", f"/v1/requests/{request_id}/events") as response:
                    received = response.iter_lines()
                    assert next(received) == "retry: 1000"
                    process.send_signal(signal.SIGTERM)
                    assert not [line for line in received if line]
            assert process.wait(30) == 0
            rest = [json.loads(line) for line in process.stderr]
            assert not [line for line in rest if line["level"] in ("error", "critical")]
            assert "secret-prompt" not in json.dumps(rest)
        finally:
            process.kill()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--host", "192.0.2.1"], "--keys-file"),
            (["--webhook-origin", "hooks.example"], "webhook_origins"),
            (["--webhook-origin", "https://hooks.example"], "webhook_secret"),
            (["--cors-origin", "https://a.example/path"], "cors_origins"),
            (["--keys-file", "/no/such/file"], "does not exist"),
            (["--tokenizer", "m"], "MODEL=FILE"),
        ],
    )
    def test_refuses_what_cannot_be_meant(self, arguments: list[str], message: str) -> None:

        app = Typer()
        app.command()(gateway)
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
        assert result.exit_code == 2
        assert message in result.output

    def test_keys_it_makes_work(self, redis_url: str, tmp_path: Path) -> None:

        app = Typer()
        app.command()(gateway_key)
        result = CliRunner().invoke(app, ['a "quoted"\ttenant\\', "--rate", "100", "--admin"])
        path = tmp_path / "keys.toml"
        path.write_text(result.stdout)
        key = result.stderr.strip()
        assert key not in result.stdout
        with running_gateway(redis_url, keys_file=path) as gateway:
            answer = httpx.get(f"{gateway.v1}/models", headers={"Authorization": f"Bearer {key}"})
            assert answer.status_code == 200


def test_page(http: httpx.Client, gateway: RunningGateway) -> None:
    del gateway
    answer = http.get("/")
    assert answer.status_code == 200
    if answer.headers["content-type"].startswith("text/html"):
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    for path in ("/../gateway/app.py", "/%2e%2e/gateway/app.py", "/..%2fgateway%2fapp.py", "/__init__.py"):
        assert http.get(path).status_code == 404


def test_a_full_server_is_named_as_full(private_server: RedisServer) -> None:
    with (
        running_gateway(private_server.url) as gateway,
        private_server.connect() as client,
        httpx.Client(base_url=gateway.url, timeout=30) as http,
    ):
        worker = FakeWorker(private_server.url)
        announce(worker)
        client.config_set("maxmemory", "1")
        reply = http.post("/v1/completions", json=ASK)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "queue_server_full")
        assert "full" in reply.json()["error"]["message"]
        client.config_set("maxmemory", "0")
        worker.close()
