"""Following requests over HTTP: from the middle, after a cut, from another gateway."""

import json
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest
from fake_worker import FakeWorker
from gateway_server import RunningGateway, running_gateway
from httpx_sse import ServerSentEvent, connect_sse
from waiting import eventually_sync

from headrace.clients import ErrorInfo


def begin(http: httpx.Client, worker: FakeWorker) -> str:
    """A request that its reader has left."""
    body = {"model": "m", "prompt": "x", "stream": True, "max_tokens": 100, "cancel_on_disconnect": False}
    with http.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        request_id = response.headers["x-headrace-request"]
    assert worker.take().id == request_id
    return request_id


def events(http: httpx.Client, request_id: str, after: str = "", **params: str) -> Iterator[ServerSentEvent]:
    headers = {"Last-Event-ID": after} if after else {}
    with connect_sse(
        http, "GET", f"/v1/requests/{request_id}/events", headers=headers, params=params
    ) as source:
        source.response.raise_for_status()
        yield from (event for event in source.iter_sse() if event.data)


def test_a_reader_that_leaves_at_any_event_misses_and_repeats_nothing(
    http: httpx.Client, worker: FakeWorker
) -> None:
    request_id = begin(http, worker)
    pieces = [random.choice(["a", "bc", "", "é", "日本", "🙂"]) for _ in range(30)]
    for piece in pieces:
        worker.emit(request_id, piece)
    worker.release_held_text(request_id, "held")
    text, tokens, after, done = "", [], "", False
    while not done:
        for number, event in enumerate(events(http, request_id, after)):
            body = json.loads(event.data)
            after = event.id
            if event.event == "done":
                done = True
                assert (body["finish_reason"], body["seq"]) == ("stop", 30)
                break
            assert (body["seq"], body["pos"]) == (len(tokens), len(text))
            tokens += body["tokens"]
            text += body["text"]
            if len(tokens) == 30 and text.endswith("held"):
                worker.finish(request_id)
            elif number == 2:
                break
    assert text == "".join(pieces) + "held"
    assert tokens == list(range(1000, 1030))
    assert after == f"30.{len(text)}.end"


def test_a_browser_that_comes_back_after_the_end_is_told_to_stay_away(
    http: httpx.Client, worker: FakeWorker
) -> None:
    request_id = begin(http, worker)
    worker.emit(request_id, "abc")
    worker.finish(request_id)
    last = list(events(http, request_id))[-1]
    answer = http.get(f"/v1/requests/{request_id}/events", headers={"Last-Event-ID": last.id})
    assert answer.status_code == 204


def test_position_in_the_query_and_in_the_middle_of_an_event(http: httpx.Client, worker: FakeWorker) -> None:
    request_id = begin(http, worker)
    worker.emit(request_id, "one two", [1, 2, 3])
    worker.finish(request_id)
    answer = http.get(f"/v1/requests/{request_id}/events", params={"after": "2.4"})
    data = next(line for line in answer.text.splitlines() if line.startswith("data: "))
    first = json.loads(data.removeprefix("data: "))
    assert (first["tokens"], first["text"], first["seq"], first["pos"]) == ([3], "two", 2, 4)


def test_another_gateway_goes_on(http: httpx.Client, redis_url: str, worker: FakeWorker) -> None:
    request_id = begin(http, worker)
    worker.emit(request_id, "one ")
    first = next(events(http, request_id))
    with running_gateway(redis_url) as other, httpx.Client(base_url=other.url, timeout=30) as elsewhere:
        stream = events(elsewhere, request_id, first.id)
        worker.emit(request_id, "two")
        assert json.loads(next(stream).data)["text"] == "two"
        worker.finish(request_id)
        assert next(stream).event == "done"


def test_a_gateway_that_stops_ends_streams_in_between_events(
    redis_url: str, http: httpx.Client, worker: FakeWorker
) -> None:
    with running_gateway(redis_url) as going, httpx.Client(base_url=going.url, timeout=30) as leaving:
        request_id = begin(leaving, worker)
        worker.emit(request_id, "one ")
        stream = events(leaving, request_id)
        first = next(stream)
        going.gateway.slots.drain()
        assert list(stream) == []
        assert leaving.get("/readyz").status_code == 503
        assert leaving.get(f"/v1/requests/{request_id}/events").status_code == 503
    worker.emit(request_id, "two")
    worker.finish(request_id)
    rest = [json.loads(event.data) for event in events(http, request_id, first.id)]
    assert [body.get("text") for body in rest] == ["two", None]


def test_chunks_of_a_chat_can_be_followed_again(http: httpx.Client, worker: FakeWorker) -> None:
    request_id = begin(http, worker)
    worker.emit(request_id, "one ")
    worker.emit(request_id, "two")
    worker.finish(request_id)
    text, after, data = "", "", ""
    while data != "[DONE]":
        # Cut after each frame.
        for event in events(http, request_id, after, format="chat"):
            after, data = event.id, event.data
            if data != "[DONE]":
                chunk = json.loads(data)
                assert chunk["id"] == request_id
                text += chunk["choices"][0]["delta"].get("content", "")
            if after:
                break
    assert text == "one two"
    path = f"/v1/requests/{request_id}/events?format=chat"
    assert http.get(path, headers={"Last-Event-ID": after}).status_code == 204


def test_silence_is_filled(http: httpx.Client, worker: FakeWorker) -> None:
    request_id = begin(http, worker)
    with http.stream("GET", f"/v1/requests/{request_id}/events") as response:
        lines = response.iter_lines()
        assert any(line.startswith(": ") for line in lines)
        worker.emit(request_id, "x")
        assert any(line.startswith("data: ") for line in lines)


@pytest.mark.parametrize("after", ["x", "1", "1.2.3", "-1.0", "1.2.ended", "1" * 20 + ".0"])
def test_bad_position(http: httpx.Client, worker: FakeWorker, after: str) -> None:
    request_id = begin(http, worker)
    answer = http.get(f"/v1/requests/{request_id}/events", params={"after": after})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "after")


def test_unknown_request(http: httpx.Client) -> None:
    for path in ("/v1/requests/nosuch", "/v1/requests/nosuch/events", "/v1/requests/" + "%2e" * 200):
        answer = http.get(path)
        assert answer.status_code == 404
        assert answer.json()["error"]["type"] == "not_found_error"
    assert http.delete("/v1/requests/nosuch").status_code == 404


class TestState:
    def test_from_queue_to_result(self, http: httpx.Client, worker: FakeWorker) -> None:
        body = {"model": "m", "prompt": "x", "stream": True, "metadata": {"a": 1}}
        with http.stream("POST", "/v1/completions", json=body) as response:
            request_id = response.headers["x-headrace-request"]
        path = f"/v1/requests/{request_id}"
        queued = http.get(path).json()
        assert (queued["id"], queued["status"], queued["result"]) == (request_id, "queued", None)
        request = worker.take()
        assert http.get(path).json()["status"] == "running"
        worker.emit(request_id, "hello", [5, 6])
        worker.finish(request_id, metadata=request.metadata)
        ended = http.get(path).json()
        assert ended["status"] == "finished"
        result = ended["result"]
        assert (result["text"], result["tokens"], result["finish_reason"]) == ("hello", [5, 6], "stop")
        assert result["usage"] == {"prompt_tokens": 7, "completion_tokens": 2, "cached_tokens": 0}
        assert result["metadata"] == {"a": 1}

    def test_cancel(self, http: httpx.Client, worker: FakeWorker) -> None:
        request_id = begin(http, worker)
        worker.emit(request_id, "some")
        stream = events(http, request_id)
        next(stream)
        answer = http.delete(f"/v1/requests/{request_id}")
        assert (answer.status_code, answer.json()["cancelled"]) == (202, True)
        assert worker.cancelled(request_id)
        worker.finish(request_id, "cancelled")
        assert json.loads(next(stream).data)["finish_reason"] == "cancelled"
        again = http.delete(f"/v1/requests/{request_id}").json()
        assert (again["status"], again["result"]["text"]) == ("finished", "some")


class TestDisconnecting:
    """Who leaves and cannot come back stops the request, unless the request says otherwise."""

    def leave(
        self, gateway: RunningGateway, worker: FakeWorker, key: str | None = None, **fields: object
    ) -> str:
        body = {"model": "m", "prompt": "x", **fields}
        headers = {} if key is None else {"Idempotency-Key": key}
        with httpx.Client(base_url=gateway.url, timeout=30, headers=headers) as http:
            if fields.get("stream"):
                with http.stream("POST", "/v1/completions", json=body) as response:
                    request = worker.take()
                    worker.emit(request.id, "x")
                    next(response.iter_lines())
            else:
                with pytest.raises(httpx.ReadTimeout):
                    http.post("/v1/completions", json=body, timeout=httpx.Timeout(30, read=1))
                request = worker.take()
        return request.id

    @pytest.mark.parametrize("stream", [True, False])
    @pytest.mark.parametrize(
        ("key", "fields"),
        [(None, {}), ("leaves", {"cancel_on_disconnect": True})],
        ids=["default", "asked for"],
    )
    def test_cancels(
        self, gateway: RunningGateway, worker: FakeWorker, stream: bool, key: str | None, fields: dict
    ) -> None:
        request_id = self.leave(gateway, worker, key, stream=stream, **fields)
        eventually_sync(lambda: worker.cancelled(request_id))

    @pytest.mark.parametrize("stream", [True, False])
    @pytest.mark.parametrize(
        ("key", "fields"),
        [("comes back", {}), (None, {"cancel_on_disconnect": False})],
        ids=["idempotency key", "asked for"],
    )
    def test_goes_on(
        self, gateway: RunningGateway, worker: FakeWorker, stream: bool, key: str | None, fields: dict
    ) -> None:
        request_id = self.leave(gateway, worker, key, stream=stream, **fields)
        # A later one that does cancel shows that there was time to.
        later = self.leave(gateway, worker, stream=stream)
        eventually_sync(lambda: worker.cancelled(later))
        assert not worker.cancelled(request_id)

    def test_followers_and_jobs_go_on(self, http: httpx.Client, worker: FakeWorker) -> None:
        request_id = http.post("/v1/requests", json={"model": "m", "prompt": "x"}).json()["id"]
        worker.take()
        worker.emit(request_id, "x")
        for form in ("native", "chat"):
            next(events(http, request_id, format=form))
        body = {"model": "m", "prompt": "x", "stream": True}
        with http.stream("POST", "/v1/completions", json=body):
            later = worker.take().id
        eventually_sync(lambda: worker.cancelled(later))
        assert not worker.cancelled(request_id)

    def test_a_choice_that_fails_ends_the_others(self, http: httpx.Client, worker: FakeWorker) -> None:
        body = {"model": "m", "prompt": "x", "stream": True, "n": 2}
        with http.stream("POST", "/v1/completions", json=body) as response:
            failing, other = worker.take().id, worker.take().id
            worker.emit(failing, "x")
            worker.finish(failing, "error", error=ErrorInfo("boom", "it broke"))
            assert "it broke" in "".join(response.iter_lines())
        eventually_sync(lambda: worker.cancelled(other))


class TestIdempotency:
    def test_the_same_key_and_body_are_one_request(self, http: httpx.Client, model: FakeWorker) -> None:
        del model
        ask = {"model": "m", "prompt": "a b"}
        ids = {
            http.post("/v1/completions", json=ask, headers={"Idempotency-Key": "k1"}).json()["id"]
            for _ in range(3)
        }
        assert len(ids) == 1
        other_key = http.post("/v1/completions", json=ask, headers={"Idempotency-Key": "k2"}).json()["id"]
        other_body = http.post(
            "/v1/completions", json=ask | {"prompt": "c"}, headers={"Idempotency-Key": "k1"}
        ).json()
        assert len(ids | {other_key, other_body["id"]}) == 3
        assert other_body["choices"][0]["text"] == "c "


def test_errors_of_the_worker(http: httpx.Client, worker: FakeWorker) -> None:
    def fail(code: str, message: str) -> None:
        request = worker.take()
        worker.finish(request.id, "error", error=ErrorInfo(code, message))

    for code, message, status, param in [
        ("invalid_request", "prompt: must be at most 100 tokens, got 200", 400, "prompt"),
        ("too_many_attempts", "the request was given up", 500, None),
    ]:
        for stream in (False, True):
            failing = threading.Thread(target=fail, args=(code, message))
            failing.start()
            answer = http.post("/v1/completions", json={"model": "m", "prompt": "x", "stream": stream})
            failing.join()
            assert answer.status_code == status, "a stream has a status too when it fails at once"
            assert answer.json()["error"]["param"] == param
            assert answer.json()["error"]["message"] == message


def test_failure_in_the_middle_of_a_stream(http: httpx.Client, worker: FakeWorker) -> None:
    body = {"model": "m", "prompt": "x", "stream": True}
    with connect_sse(http, "POST", "/v1/completions", json=body) as source:
        request = worker.take()
        worker.emit(request.id, "some")
        frames = source.iter_sse()
        assert json.loads(next(frames).data)["choices"][0]["text"] == "some"
        worker.finish(request.id, "error", error=ErrorInfo("boom", "it broke"))
        assert json.loads(next(frames).data)["error"]["message"] == "it broke"
        assert list(frames) == []


def test_a_reader_that_takes_nothing_is_left_and_can_come_back(redis_url: str, worker: FakeWorker) -> None:
    piece = "0123456789" * 1000
    with (
        running_gateway(redis_url, write_timeout=0.5) as gateway,
        httpx.Client(base_url=gateway.url, timeout=60) as http,
        socket.socket() as stuck,
    ):
        request_id = http.post("/v1/requests", json={"model": "m", "prompt": "x"}).json()["id"]
        worker.claim(request_id)
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect(("127.0.0.1", int(gateway.url.rpartition(":")[2])))
        stuck.sendall(f"GET /v1/requests/{request_id}/events HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert b"200 OK" in stuck.recv(100)
        for _ in range(600):
            worker.emit(request_id, piece)
        while len(gateway.gateway.slots):
            threading.Event().wait(0.02)
        worker.finish(request_id)
        received = 0
        with suppress(ConnectionResetError):
            while data := stuck.recv(1 << 16):
                received += len(data)
        assert received < 5_000_000, "what it did not read was not kept for it"
        half = 300 * len(piece)
        rest = "".join(
            json.loads(event.data).get("text", "") for event in events(http, request_id, f"300.{half}")
        )
        assert len(rest) == half
