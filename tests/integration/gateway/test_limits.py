"""What the gateway refuses whoever asks: sizes, names, origins, nonsense."""

import json
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import httpx
import pytest
from fake_worker import FakeWorker
from gateway_server import RunningGateway, running_gateway

ASK = {"model": "m", "prompt": "a b"}


def test_prompts_are_bounded_together(redis_url: str, model: FakeWorker) -> None:
    del model
    with running_gateway(redis_url, max_prompt=100) as gateway:
        url = f"{gateway.v1}/completions"
        assert httpx.post(url, json=ASK | {"prompt": "x" * 100}).status_code == 200
        for prompt in ("x" * 101, "é" * 51, ["x" * 60, "y" * 60], [1] * 26):
            answer = httpx.post(url, json=ASK | {"prompt": prompt})
            assert answer.status_code == 413
            assert answer.json()["error"]["param"] == "prompt"
        chat = {"model": "m", "messages": [{"role": "user", "content": "x" * 101}]}
        assert httpx.post(f"{gateway.v1}/chat/completions", json=chat).status_code == 413


def test_bodies_are_bounded_with_and_without_a_length(redis_url: str) -> None:
    with running_gateway(redis_url, max_body=1000) as gateway:
        url = f"{gateway.v1}/completions"
        body = json.dumps(ASK | {"prompt": "x" * 2000}).encode()
        assert httpx.post(url, content=body).status_code == 413
        assert httpx.post(url, content=iter([body[:500], body[500:]])).status_code == 413
        lying = {"content-length": "99999999999999999999"}
        with socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2]))) as raw:
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n")
            raw.sendall("".join(f"{k}: {v}\r\n" for k, v in lying.items()).encode() + b"\r\n")
            assert b" 4" in raw.recv(100).split(b"\r\n")[0]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"model": ' * 5000,
        b"null",
        b"[]",
        b'"x"',
        b'{"model": "m"}',
        b'{"model": "m", "prompt": NaN}',
        b'{"model": "m", "prompt": "x", "temperature": NaN}',
        b'{"model": "m", "prompt": "x", "temperature": 1e999}',
        b'{"model": "m", "prompt": "x", "seed": ' + b"9" * 5000 + b"}",
        b'{"model": "m", "prompt": "x", "max_tokens": 99999999999999999999}',
        b'{"model": "m", "prompt": "\\ud800"}',
        b'{"model": "m", "prompt": "x", "stop": ["\\ud800"]}',
        b'{"model": "m", "prompt": "x", "metadata": {"\\ud800": 1}}',
        b'{"model": "m", "prompt": "x", "metadata": {"a": "' + b"x" * 20_000 + b'"}}',
        b'{"model": "m", "prompt": "x", "metadata": {"a": 99999999999999999999}}',
        b'{"model": "m", "prompt": [""]}',
        b'{"model": "m", "prompt": [[]]}',
        b'{"model": "m", "prompt": ["a", 1]}',
        b'{"model": "m", "prompt": [-1]}',
        b'{"model": "m", "prompt": [[1], "a"]}',
        b"\xff\xfe\x00",
    ],
)
def test_nonsense_is_the_callers_fault(http: httpx.Client, model: FakeWorker, body: bytes) -> None:
    del model
    answer = http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert len(answer.content) < 2000


@pytest.mark.parametrize("model_name", ["{x}", "a b", "m\n", "*", "../m", "m" * 200, "é"])
def test_model_names_that_could_not_be_a_key(http: httpx.Client, model: FakeWorker, model_name: str) -> None:
    del model
    answer = http.post("/v1/completions", json=ASK | {"model": model_name})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_no_origin_is_let_in_unless_named(redis_url: str, http: httpx.Client) -> None:
    page = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    for answer in (http.options("/v1/models", headers=page), http.get("/v1/models", headers=page)):
        assert not [name for name in answer.headers if name.startswith("access-control")]
    with running_gateway(redis_url, cors_origins=("https://page.example",)) as gateway:
        allowed = httpx.options(f"{gateway.v1}/models", headers=page)
        assert allowed.headers["access-control-allow-origin"] == "https://page.example"
        other = httpx.get(f"{gateway.v1}/models", headers={"Origin": "https://other.example"})
        assert "access-control-allow-origin" not in other.headers


def test_a_page_whose_name_points_here_is_not_let_in(redis_url: str) -> None:
    with running_gateway(redis_url, allowed_hosts=("localhost", "127.0.0.1", "::1")) as gateway:
        port = gateway.url.rpartition(":")[2]
        for host, status in [
            ("evil.example", 400),
            (f"evil.example:{port}", 400),
            ("localhost", 200),
            (f"[::1]:{port}", 200),
            ("localhost.evil.example", 400),
        ]:
            assert httpx.get(f"{gateway.v1}/models", headers={"Host": host}).status_code == status


def test_a_form_of_another_site_submits_nothing(http: httpx.Client, worker: FakeWorker) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        answer = http.post("/v1/completions", content=json.dumps(ASK), headers={"content-type": kind})
        assert answer.status_code == 400
    with pytest.raises(AssertionError, match="no request came"):
        worker.take(timeout=0.3)


def test_redis_away(redis_url: str, gateway: RunningGateway) -> None:
    del redis_url, gateway
    with running_gateway("redis://127.0.0.1:1/0", patience=0.2) as cut_off:
        answer = httpx.post(f"{cut_off.v1}/completions", json=ASK)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_unavailable")
        assert httpx.get(f"{cut_off.url}/readyz").status_code == 503
        assert httpx.get(f"{cut_off.url}/healthz").status_code == 200


def test_no_such_route_and_method(http: httpx.Client) -> None:
    assert http.get("/v1/nothing").json()["error"]["type"] == "not_found_error"
    answer = http.put("/v1/models")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


def test_a_stream_that_is_refused_leaves_no_request_behind(redis_url: str, model: FakeWorker) -> None:
    del model
    with running_gateway(redis_url, max_streams=1) as gateway, ThreadPoolExecutor(1) as threads:
        admission = gateway.gateway.admission
        submit = admission.submit
        submitting, refused = threading.Event(), threading.Event()
        submitted = 0

        async def slow(requests: Sequence[Any], **options: Any) -> Any:
            nonlocal submitted
            submitted += len(requests)
            submitting.set()
            await anyio.to_thread.run_sync(refused.wait)
            return await submit(requests, **options)

        admission.submit = slow
        url = f"{gateway.v1}/completions"
        ask = ASK | {"stream": True}
        first = threads.submit(httpx.post, url, json=ask, timeout=30)
        assert submitting.wait(30)
        try:
            second = httpx.post(url, json=ask, timeout=10)
        finally:
            refused.set()
        assert (second.status_code, second.json()["error"]["code"]) == (503, "too_many_streams")
        assert submitted == 1
        assert first.result().status_code == 200
        # The slot is free again, also after a request that could not be submitted.
        assert httpx.post(url, json=ask | {"model": "nobody's"}).status_code == 404
        admission.submit = submit
        assert httpx.post(url, json=ask).status_code == 200
