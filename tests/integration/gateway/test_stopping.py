"""Signals to a gateway with open responses: the command itself."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
from fake_worker import FakeWorker
from httpx_sse import connect_sse
from waiting import eventually_sync

CHAT: list[Any] = [{"role": "user", "content": "the mill"}]
COMMAND = (
    "import typer; from headrace.clients.cli.gateway import gateway;"
    "app = typer.Typer(); app.command()(gateway); app()"
)


@dataclass
class GatewayProcess:
    url: str
    process: "subprocess.Popen[str]"
    worker: FakeWorker

    def sent_away(self, stop: Callable[[], None]) -> None:
        """Call ``stop``, and return once it has had its effect: a follower, who can come back, is let go."""
        with httpx.Client(base_url=self.url, timeout=60) as http:
            request_id = http.post("/v1/requests", json={"model": "m", "prompt": "x"}).json()["id"]
            self.worker.take()
            self.worker.emit(request_id, "some")
            with connect_sse(http, "GET", f"/v1/requests/{request_id}/events") as source:
                events = source.iter_sse()
                assert json.loads(next(events).data)["text"] == "some"
                stop()
                assert not list(events)
        assert not self.worker.cancelled(request_id)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)


@contextmanager
def gateway_process(worker: FakeWorker, redis_url: str, grace: float) -> Iterator[GatewayProcess]:
    arguments = ["--redis", redis_url, "--port", "0", "--log-format", "json", "--grace", str(grace)]
    process = subprocess.Popen([sys.executable, "-c", COMMAND, *arguments], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        url = json.loads(process.stderr.readline())["message"].removeprefix("gateway: ")
        lines: list[str] = []
        reading = threading.Thread(target=lambda: lines.extend(process.stderr or []))
        reading.start()
        with httpx.Client(base_url=url, transport=httpx.HTTPTransport(retries=10)) as http:
            eventually_sync(lambda: http.get("/readyz").status_code == 200)
        yield GatewayProcess(url, process, worker)
        assert process.wait(60) == 0
        reading.join()
        assert not [line for line in lines if json.loads(line)["level"] in ("error", "critical")]
    finally:
        process.kill()


@pytest.fixture
def client_threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as threads:
        yield threads


def streamed(client: openai.OpenAI, form: str) -> str:
    """The text of a stream that had a finish reason. Raises as the package does."""
    text, reason = "", None
    if form == "chat":
        for chunk in client.chat.completions.create(model="m", messages=CHAT, stream=True):
            text += chunk.choices[0].delta.content or ""
            reason = chunk.choices[0].finish_reason
    else:
        for chunk in client.completions.create(model="m", prompt="x", stream=True):
            text += chunk.choices[0].text
            reason = chunk.choices[0].finish_reason
    assert reason == "stop"
    return text


def whole(client: openai.OpenAI, form: str) -> str:
    if form == "chat":
        return client.chat.completions.create(model="m", messages=CHAT).choices[0].message.content or ""
    return client.completions.create(model="m", prompt="x").choices[0].text


ASKS = {"streamed": streamed, "whole": whole}


def ask(
    threads: ThreadPoolExecutor, gateway: GatewayProcess, **options: Any
) -> dict[str, tuple[str, Future[str]]]:
    """Each kind of answer, half of it there: its request's id, and what its client will have."""
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0, **options)
    asked = {}
    for name, call in ASKS.items():
        for form in ("chat", "completion"):
            answer = threads.submit(call, client, form)
            request = gateway.worker.take()
            gateway.worker.emit(request.id, "half ")
            asked[f"{name} {form}"] = request.id, answer
    return asked


def test_answers_have_the_grace_and_followers_are_sent_away_first(
    client_threads: ThreadPoolExecutor, redis_url: str, worker: FakeWorker
) -> None:
    with gateway_process(worker, redis_url, 60) as gateway:
        asked = ask(client_threads, gateway)
        gateway.sent_away(gateway.stop)
        for request_id, answer in asked.values():
            worker.emit(request_id, "and the rest")
            worker.finish(request_id)
            assert answer.result(60) == "half and the rest"


@pytest.mark.parametrize("end", ["grace", "second signal"])
def test_who_is_cut_gets_an_error(
    client_threads: ThreadPoolExecutor, redis_url: str, worker: FakeWorker, end: str
) -> None:
    with gateway_process(worker, redis_url, 1 if end == "grace" else 600) as gateway:
        asked = ask(client_threads, gateway)
        kept = ask(client_threads, gateway, default_headers={"Idempotency-Key": "k"})
        gateway.sent_away(gateway.stop)
        if end == "second signal":
            gateway.stop()
        for name, (_, answer) in (asked | {f"kept {name}": it for name, it in kept.items()}).items():
            error = answer.exception(60)
            assert isinstance(error, openai.APIError), name
            assert error.code == "gateway_stopping", name
            status = 503 if "whole" in name else None
            assert getattr(error, "status_code", None) == status, "SDKs repeat what had a status of 503"
    assert all(worker.cancelled(request_id) for request_id, _ in asked.values())
    assert not any(worker.cancelled(request_id) for request_id, _ in kept.values())
