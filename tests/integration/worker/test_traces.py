"""One trace from the HTTP request to the last token, as a collector of OpenTelemetry receives it."""

import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tiny_models import save_tiny_model
from up_process import address, up
from waiting import eventually_sync

TRACE_ID, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector(ThreadingHTTPServer):
    """What OTLP over HTTP delivers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.spans: list[Span] = []


class _Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.server.spans.extend(scope.spans)
        self.send_response(200)
        self.end_headers()

    def log_request(self, *status: object) -> None:
        del status


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        yield collector
        collector.shutdown()
        thread.join()


def test_a_request_is_one_trace(collector: Collector, tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path / "model")
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_address[1]}"}
    ask = {"model": "tiny", "prompt": "The mill", "max_tokens": 5, "ignore_eos": True}
    headers = {"traceparent": f"00-{TRACE_ID}-{CALLER}-01"}
    with (
        up(tmp_path / "model", tmp_path / "log", "--traces", variables=variables) as process,
        httpx.Client(base_url=address(process, "OpenAI API"), timeout=60) as http,
    ):
        eventually_sync(lambda: http.post("/v1/completions", json=ask).status_code != 503, 300)
        answer = http.post("/v1/completions", json=ask, headers=headers)
        assert answer.status_code == 200, answer.text
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0, (tmp_path / "log").read_text()
    spans = {span.name: span for span in collector.spans if span.trace_id.hex() == TRACE_ID}
    assert set(spans) == {
        "POST /v1/completions",
        "headrace.request",
        "headrace.queue",
        "headrace.prefill",
        "headrace.decode",
    }
    parents = {name: span.parent_span_id for name, span in spans.items()}
    assert parents["POST /v1/completions"].hex() == CALLER
    assert parents["headrace.request"] == spans["POST /v1/completions"].span_id
    phases = [spans[f"headrace.{phase}"] for phase in ("queue", "prefill", "decode")]
    assert {phase.parent_span_id for phase in phases} == {spans["headrace.request"].span_id}
    request = spans["headrace.request"]
    moments = [request.start_time_unix_nano]
    for phase in phases:
        assert phase.start_time_unix_nano == pytest.approx(moments[-1], abs=1e6), "one begins where one ends"
        moments.append(phase.end_time_unix_nano)
    assert moments == sorted(moments)
    said = {item.key: item.value for item in request.attributes}
    assert said["gen_ai.usage.output_tokens"].int_value == 5
    assert said["headrace.request.id"].string_value in answer.json()["id"]
    assert "The mill" not in str(collector.spans)
