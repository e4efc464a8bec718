"""Readers that are older, stricter or further away than a test's usual ones."""

import json
import socket
from typing import Any

import httpx
import pytest
from fake_worker import FakeWorker
from gateway_server import RunningGateway
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

CHAT = {"model": "m", "messages": [{"role": "user", "content": "one two"}]}
TEXT = {"model": "m", "prompt": "one two"}
LINE_BREAKS = "a\u0085b\u2028c\u2029d\x0b\x0c\x1c\x1d\x1e\re"


def old(gateway: RunningGateway, head: str, body: bytes = b"", *, pieces: int = 1) -> tuple[str, bytes]:
    """Head and body of an answer by HTTP/1.0, which ends with the connection; the request in ``pieces``."""
    host, _, port = gateway.url.removeprefix("http://").rpartition(":")
    request = f"{head} HTTP/1.0\r\nContent-Type: application/json\r\n".encode()
    request += f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        size = -(-len(request) // pieces)
        for start in range(0, len(request), size):
            connection.sendall(request[start : start + size])
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    head_, _, content = answer.partition(b"\r\n\r\n")
    return head_.decode().lower(), content


@pytest.mark.usefixtures("model")
class TestHttp10:
    @pytest.mark.parametrize("pieces", [1, 200])
    def test_streams(self, gateway: RunningGateway, pieces: int) -> None:
        body = json.dumps(CHAT | {"stream": True}).encode()
        head, content = old(gateway, "POST /v1/chat/completions", body, pieces=pieces)
        assert "200" in head
        assert "transfer-encoding" not in head
        assert "connection: close" in head
        lines = content.decode().splitlines()
        assert lines[-2:] == ["data: [DONE]", ""]
        assert all(line.partition(":")[0] in ("id", "data", "") for line in lines)

    def test_events(self, gateway: RunningGateway, http: httpx.Client) -> None:
        request_id = http.post("/v1/completions", json=TEXT).json()["id"]
        head, content = old(gateway, f"GET /v1/requests/{request_id}/events")
        assert "transfer-encoding" not in head
        fields = {line.partition(":")[0] for line in content.decode().splitlines()}
        assert fields <= {"id", "data", "event", "retry", ""}
        assert "event: done" in content.decode()

    def test_files(self, gateway: RunningGateway, http: httpx.Client) -> None:
        line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": TEXT})
        upload = {"file": ("lines.jsonl", f"{line}\n".encode())}
        file = http.post("/v1/files", data={"purpose": "batch"}, files=upload).json()
        head, content = old(gateway, f"GET /v1/files/{file['id']}/content")
        assert f"content-length: {file['bytes']}" in head
        assert content.decode() == f"{line}\n"

    def test_what_is_not_streamed(self, gateway: RunningGateway) -> None:
        head, content = old(gateway, "POST /v1/completions", json.dumps(TEXT).encode())
        assert f"content-length: {len(content)}" in head
        assert json.loads(content)["choices"][0]["text"] == "one two "
        assert old(gateway, "GET /healthz")[1] == b'{"status":"alive"}'
        assert "404" in old(gateway, "GET /nothing")[0]


def test_proxies_are_told_to_pass_on_what_they_have(http: httpx.Client, model: FakeWorker) -> None:
    del model
    request_id = http.post("/v1/completions", json=TEXT).json()["id"]
    answers = [
        http.post("/v1/completions", json=TEXT | {"stream": True}),
        http.post("/v1/chat/completions", json=CHAT | {"stream": True}),
        http.get(f"/v1/requests/{request_id}/events"),
        http.get(f"/v1/requests/{request_id}/events?format=chat"),
    ]
    with http.stream("GET", "/v1/system/events") as live:
        answers.append(live)
    for answer in answers:
        assert answer.headers["cache-control"] == "no-cache, no-transform"
        assert answer.headers["x-accel-buffering"] == "no"


def test_readers_that_split_lines_by_unicode(http: httpx.Client, worker: FakeWorker) -> None:
    """httpx's ``iter_lines`` does, and whatever uses it."""
    request_id = http.post("/v1/requests", json=TEXT | {"metadata": {"x": LINE_BREAKS}}).json()["id"]
    request = worker.take()
    worker.emit(request_id, LINE_BREAKS)
    worker.finish(request_id, metadata=request.metadata)
    for form in ("native", "chat", "completion"):
        with http.stream("GET", f"/v1/requests/{request_id}/events?format={form}") as response:
            lines = list(response.iter_lines())
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        bodies = [json.loads(item) for item in data if item != "[DONE]"]
        assert LINE_BREAKS in _strings(bodies)
        assert all(line.partition(":")[0] in ("id", "data", "event", "retry", "") for line in lines)


def _strings(value: Any) -> list[str]:
    match value:
        case str():
            return [value]
        case dict():
            return [text for item in value.values() for text in _strings(item)]
        case list():
            return [text for item in value for text in _strings(item)]
        case _:
            return []


class TestEnds:
    """OpenAI's formats have its finish reasons only; for an end that is none of them there is an error."""

    ROUTES = ("/v1/chat/completions", "/v1/completions")

    def end(self, worker: FakeWorker, reason: Any) -> str:
        request = worker.take()
        worker.emit(request.id, "half ")
        worker.finish(request.id, reason)
        return request.id

    @pytest.mark.parametrize("reason", ["stop", "length"])
    def test_strict_clients_take_every_chunk(
        self, http: httpx.Client, worker: FakeWorker, reason: str
    ) -> None:
        for route, chunk, asked in zip(
            self.ROUTES, (ChatCompletionChunk, Completion), (CHAT, TEXT), strict=True
        ):
            with http.stream("POST", route, json=asked | {"stream": True}) as response:
                self.end(worker, reason)
                data = [line.removeprefix("data: ") for line in response.iter_lines() if line[:5] == "data:"]
            assert data.pop() == "[DONE]"
            chunks = [json.loads(item) for item in data]
            assert chunks[-1]["choices"][0]["finish_reason"] == reason
            for item in chunks:
                if chunk is Completion:  # whose finish reason the package does not let be null, though it is
                    item["choices"][0]["finish_reason"] = reason
                chunk.model_validate(item, strict=True)

    @pytest.mark.parametrize(
        ("reason", "code", "status"),
        [
            ("cancelled", "request_cancelled", 499),
            ("expired", "deadline_exceeded", 504),
            ("error", "error", 500),
        ],
    )
    def test_half_an_answer_is_an_error(
        self, http: httpx.Client, worker: FakeWorker, reason: str, code: str, status: int
    ) -> None:
        for route, asked in zip(self.ROUTES, (CHAT, TEXT), strict=True):
            with http.stream("POST", route, json=asked | {"stream": True}) as response:
                request = worker.take()
                worker.emit(request.id, "half ")
                lines = response.iter_lines()
                assert "data" in next(line for line in lines if "half" in line)
                worker.finish(request.id, reason)
                rest = [line for line in lines if line.startswith("data:")]
            assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == code
            native = http.get(f"/v1/requests/{request.id}").json()["result"]
            assert (native["finish_reason"], native["text"]) == (reason, "half ")
            again = {"Idempotency-Key": f"{reason} {route}"}
            with pytest.raises(httpx.ReadTimeout):
                http.post(route, json=asked, headers=again, timeout=httpx.Timeout(30, read=0.2))
            self.end(worker, reason)
            answer = http.post(route, json=asked, headers=again)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)

    def test_strict_clients_take_what_is_not_streamed(self, http: httpx.Client, model: FakeWorker) -> None:
        del model
        for route, kind, asked in zip(self.ROUTES, (ChatCompletion, Completion), (CHAT, TEXT), strict=True):
            kind.model_validate(http.post(route, json=asked).json(), strict=True)
