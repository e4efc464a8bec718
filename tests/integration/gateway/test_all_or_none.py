"""Several requests at once: all are enqueued, or none runs."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from fake_worker import FakeWorker
from gateway_server import RunningGateway, announce, running_gateway
from redis_servers import RedisServer

from headrace.clients.errors import Unavailable
from headrace.clients.gateway.access.api_keys import make_key
from headrace.clients.protocol import ErrorInfo, Request, decode_request

MANY = {"model": "m", "prompt": ["one", "two", "three"], "n": 2}


def queued(worker: FakeWorker) -> list[Request]:
    entries = [worker.redis.xrange(queue) for queue in worker.keys.queues("m")]
    return [decode_request(fields[b"r"]) for found in entries for _, fields in found]


def states(worker: FakeWorker) -> list[bytes]:
    return worker.redis.keys("headrace:request:*")


@contextmanager
def in_the_background(url: str, body: dict) -> Iterator[list[httpx.Response]]:
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(httpx.post(url, json=body, timeout=60)))
    thread.start()
    yield answers
    thread.join(60)
    assert answers


@pytest.mark.parametrize("key", [None, "again"])
def test_a_queue_without_room_for_all_takes_none(redis_url: str, worker: FakeWorker, key: str | None) -> None:
    headers = {"idempotency-key": key} if key else {}
    with running_gateway(redis_url, queue_limit=7) as gateway:
        for _ in "ab":
            body = {"model": "m", "prompt": "x"}
            assert httpx.post(f"{gateway.v1}/requests", json=body).status_code == 202
        answer = httpx.post(f"{gateway.v1}/completions", json=MANY, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
        assert "6 more do not fit" in answer.json()["error"]["message"]
        assert [request.prompt for request in queued(worker)] == ["x", "x"]
        assert len(states(worker)) == 2
        body = MANY | {"n": 3}
        answer = httpx.post(f"{gateway.v1}/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")


@pytest.mark.parametrize(
    ("prompts", "param"),
    [
        (["fine", "lone \ud800 surrogate"], "prompt"),
        ([[1, 2], [3] * ((1 << 20) + 1)], "tokens"),
    ],
)
def test_one_prompt_that_is_not_valid_refuses_all(
    redis_url: str, worker: FakeWorker, prompts: list, param: str
) -> None:
    with running_gateway(redis_url, max_prompt=64 << 20, max_body=64 << 20) as gateway:
        body = json.dumps({"model": "m", "prompt": prompts}).encode()
        answer = httpx.post(
            f"{gateway.v1}/completions", content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].split(".")[0] in (param, "prompt")
        assert queued(worker) == []
        assert states(worker) == []


def test_a_rate_that_does_not_allow_all_takes_none(
    redis_url: str, worker: FakeWorker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    key, table = make_key("acme", rate=1, burst=2)
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    file.write_text(table)
    with running_gateway(redis_url, keys_file=file) as gateway:
        headers = {"authorization": f"Bearer {key}"}
        body = {"model": "m", "prompt": "x"}
        assert httpx.post(f"{gateway.v1}/requests", json=body, headers=headers).status_code == 202
        answer = httpx.post(f"{gateway.v1}/completions", json=MANY, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert [request.prompt for request in queued(worker)] == ["x"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_the_worker_refuses_ends_the_others(
    gateway: RunningGateway, worker: FakeWorker, stream: bool
) -> None:
    body = {"model": "m", "prompt": ["one", "two", "three"], "stream": stream}
    with in_the_background(f"{gateway.v1}/completions", body) as answers:
        requests = [worker.take() for _ in range(3)]
        worker.emit(requests[0].id, "begun")
        worker.finish(requests[1].id, "error", error=ErrorInfo("invalid_input", "prompt: is too long"))
        others = [requests[0], requests[2]]
        while not all(worker.cancelled(request.id) for request in others):
            threading.Event().wait(0.01)
        for request in others:
            worker.finish(request.id, "cancelled")
    (answer,) = answers
    assert "prompt: is too long" in answer.text
    assert stream or answer.status_code == 400


def test_a_server_that_refuses_writes_has_none_of_them(private_server: RedisServer) -> None:
    worker = FakeWorker(private_server.url)
    try:
        announce(worker)
        with running_gateway(private_server.url, patience=1.0) as gateway:
            body = {"model": "m", "prompt": "x"}
            assert httpx.post(f"{gateway.v1}/requests", json=body).status_code == 202
            worker.redis.config_set("maxmemory", 1)
            answer = httpx.post(f"{gateway.v1}/completions", json=MANY)
            worker.redis.config_set("maxmemory", 0)
            assert answer.status_code == 503
            assert [request.prompt for request in queued(worker)] == ["x"]
    finally:
        worker.close()


def test_what_was_enqueued_without_an_answer_is_cancelled(
    redis_url: str, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply is lost: whether anything was enqueued is not known, and nobody knows the ids."""
    with running_gateway(redis_url) as gateway:
        client = gateway.gateway.client
        submit_all = client.submit_all

        async def lost(requests: list[Request]) -> None:
            await submit_all(requests)
            raise Unavailable("the reply was lost")

        monkeypatch.setattr(client, "submit_all", lost)
        assert httpx.post(f"{gateway.v1}/completions", json=MANY).status_code == 503
        found = queued(worker)
        assert len(found) == 6
        assert all(worker.cancelled(request.id) for request in found)
        answer = httpx.post(f"{gateway.v1}/completions", json=MANY, headers={"idempotency-key": "k"})
        assert answer.status_code == 503
        repeatable = {request.id for request in queued(worker)} - {request.id for request in found}
        assert len(repeatable) == 6, "whoever sends the key again finds them"
        assert not any(worker.cancelled(request_id) for request_id in repeatable)
