"""Jobs that nobody waits for, and the webhooks that tell of their end."""

import hashlib
import hmac
import json
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any

import httpx
import pytest
from fake_worker import FakeWorker
from gateway_server import RunningGateway, running_gateway, silence

MASTER = "a secret of some length"
JOB = {"model": "m", "prompt": "a b", "max_tokens": 5}


def wait_for_end(http: httpx.Client, path: str) -> dict[str, Any]:
    while True:
        state = http.get(path).json()
        if state["status"] == "finished":
            return state


class TestJobs:
    def test_accepted_then_done(self, http: httpx.Client, model: FakeWorker) -> None:
        del model
        answer = http.post("/v1/requests", json={**JOB, "metadata": {"order": 7}})
        assert answer.status_code == 202
        assert answer.headers["location"] == f"/v1/requests/{answer.json()['id']}"
        ended = wait_for_end(http, answer.headers["location"])
        assert (ended["result"]["text"], ended["result"]["metadata"]) == ("a b ", {"order": 7})

    def test_every_field_reaches_the_worker(self, http: httpx.Client, worker: FakeWorker) -> None:
        fields = {
            "max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1,
            "repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": -0.3, "seed": 11,
            "stop": ["x"], "stop_tokens": [3], "ignore_eos": True, "logprobs": 2, "priority": "high",
            "deadline": 1 << 42, "metadata": [1],
        }  # fmt: skip
        messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "x"}]
        answer = http.post("/v1/requests", json={"model": "m", "messages": messages, **fields})
        assert answer.status_code == 202, answer.text
        request = worker.take()
        assert {name: getattr(request, name) for name in fields} == fields
        assert request.messages is not None
        assert request.messages[0].model_dump() == {"role": "user", "content": "hi", "name": "x"}

    @pytest.mark.parametrize(
        ("change", "param"),
        [
            ({"prompt": None}, "request"),
            ({"tokens": [1]}, "request"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"speed": 3}, "speed"),
            ({"id": "mine"}, "id"),
            ({"tenant": "other"}, "tenant"),
            ({"webhook": "https://example.com/"}, "webhook"),
        ],
    )
    def test_wrong_field(
        self, http: httpx.Client, model: FakeWorker, change: dict[str, Any], param: str
    ) -> None:
        del model
        answer = http.post("/v1/requests", json={**JOB, **change})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)

    def test_waits_for_a_worker_of_a_known_model(
        self, redis_url: str, http: httpx.Client, worker: FakeWorker
    ) -> None:
        assert http.post("/v1/requests", json=JOB).status_code == 202
        silence(worker)
        assert http.post("/v1/requests", json=JOB).status_code == 202, "its queue is there"
        assert http.post("/v1/requests", json=JOB | {"model": "m2"}).status_code == 404
        with running_gateway(redis_url, models=("m2",)) as gateway:
            assert httpx.post(f"{gateway.v1}/requests", json=JOB | {"model": "m2"}).status_code == 202
            interactive = httpx.post(f"{gateway.v1}/completions", json=JOB | {"model": "m2"})
            assert interactive.status_code == 503


class Receiver:
    """Receives webhooks; answers each with the next of ``statuses``, then 200."""

    def __init__(self) -> None:
        self.received: Queue[tuple[dict[str, str], bytes]] = Queue()
        self.statuses: list[int] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status = receiver.statuses.pop(0) if receiver.statuses else 200
                self.send_response(status)
                if status == 302:
                    self.send_header("location", f"http://127.0.0.1:{receiver.port}/redirected")
                self.send_header("content-length", "0")
                self.end_headers()
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.received.put(({**headers, "path": self.path}, body))

            def log_message(self, *args: object) -> None:
                del args

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self.origin = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def hooked(redis_url: str, receiver: Receiver) -> Iterator[RunningGateway]:
    with running_gateway(
        redis_url, webhook_origins=(receiver.origin, "https://hooks.example"), webhook_secret=MASTER
    ) as gateway:
        yield gateway


class TestWebhooks:
    def test_signed_and_complete(self, hooked: RunningGateway, receiver: Receiver, model: FakeWorker) -> None:
        del model
        job = {**JOB, "webhook": f"{receiver.origin}/done?x=1"}
        request_id = httpx.post(f"{hooked.v1}/requests", json=job).json()["id"]
        headers, body = receiver.received.get(timeout=30)
        assert headers["path"] == "/done?x=1"
        event = json.loads(body)
        assert (event["type"], event["id"]) == ("request.finished", request_id)
        assert event["request"]["result"]["text"] == "a b "
        secret = httpx.get(f"{hooked.v1}/webhook_secret").json()["secret"]
        # As the specification says, without our code.
        key = b64decode(secret.removeprefix("whsec_"))
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        digest = hmac.new(key, signed, hashlib.sha256).digest()
        assert headers["webhook-signature"] == "v1," + b64encode(digest).decode()
        assert headers["webhook-id"] == request_id

    def test_tried_again_until_received(
        self, hooked: RunningGateway, receiver: Receiver, model: FakeWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        del model
        monkeypatch.setattr("headrace.clients.gateway.webhooks.delivery._FIRST_PAUSE", 0.05)
        receiver.statuses = [500, 302, 404]
        job = {**JOB, "webhook": f"{receiver.origin}/done"}
        httpx.post(f"{hooked.v1}/requests", json=job)
        seen = [receiver.received.get(timeout=30) for _ in range(4)]
        assert {headers["path"] for headers, _ in seen} == {"/done"}, "a redirect is not followed"
        assert len({headers["webhook-id"] for headers, _ in seen}) == 1

    def test_given_up(
        self, hooked: RunningGateway, receiver: Receiver, model: FakeWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        del model
        monkeypatch.setattr("headrace.clients.gateway.webhooks.delivery._FIRST_PAUSE", 0.001)
        monkeypatch.setattr("headrace.clients.gateway.webhooks.delivery.ATTEMPTS", 3)
        receiver.statuses = [500] * 100
        httpx.post(f"{hooked.v1}/requests", json={**JOB, "webhook": f"{receiver.origin}/done"})
        while not hooked.gateway.metrics.webhooks.labels("given_up")._value.get():
            threading.Event().wait(0.02)
        assert receiver.received.qsize() == 3

    def test_a_gateway_that_dies_loses_none(
        self, redis_url: str, receiver: Receiver, worker: FakeWorker
    ) -> None:
        settings = {"webhook_origins": (receiver.origin,), "webhook_secret": MASTER}
        with running_gateway(redis_url, **settings) as first:
            job = {**JOB, "webhook": f"{receiver.origin}/done"}
            request_id = httpx.post(f"{first.v1}/requests", json=job).json()["id"]
        request = worker.take()
        worker.emit(request.id, "x")
        worker.finish(request.id)
        assert receiver.received.empty()
        with running_gateway(redis_url, **settings):
            assert json.loads(receiver.received.get(timeout=30)[1])["id"] == request_id

    @pytest.mark.parametrize(
        "url",
        [
            "https://evil.example/",
            "http://hooks.example/",
            "https://hooks.example:444/",
            "https://hooks.example.evil.example/",
            "https://evil.example/https://hooks.example/",
            "https://hooks.example@evil.example/",
            "https://user:pw@hooks.example/",
            "https://evil.example#@hooks.example/",
            "https://evil.example\\@hooks.example/",
            "https://hooks.example\\.evil.example/",
            "https:///hooks.example",
            "//hooks.example/",
            "file:///etc/passwd",
            "gopher://hooks.example/",
            "http://169.254.169.254/latest/meta-data",
            "http://127.0.0.1:6379/",
            "http://[::1]/",
            "http://2130706433/",
            "https://hooks.example%2eevil.example/",
            "https://hooks.example\r\nHost: evil.example/",
            "not a url",
            "",
        ],
    )
    def test_goes_nowhere_else(self, hooked: RunningGateway, model: FakeWorker, url: str) -> None:
        del model
        answer = httpx.post(f"{hooked.v1}/requests", json={**JOB, "webhook": url})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "webhook")

    def test_off_unless_configured(self, http: httpx.Client, model: FakeWorker) -> None:
        del model
        answer = http.post("/v1/requests", json={**JOB, "webhook": "https://hooks.example/"})
        assert answer.status_code == 400
        assert http.get("/v1/webhook_secret").status_code == 400
