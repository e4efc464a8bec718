"""Text that JSON can carry and UTF-8 cannot, and other hostile data, in every field of every route.

What is refused is refused with the field's name; what is taken can be read back, and spoils no list.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import httpx
import msgpack
import pytest
import redis
from fake_worker import FakeWorker
from gateway_server import RunningGateway
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from websockets.sync.client import connect

from headrace.clients.gateway.redis_keys import GatewayKeys

SURROGATES = ["\ud800", "a\udfffb", "\udcff" * 3, "\udc00\ud800"]
ODD = [
    "\0",
    "a\0b",
    "\ufffe\uffff",
    "\u2028\u2029\x85",
    "\U0001f600",
    "\r\n",
    "%00%ff",
    "../..",
    "}{",
    "\x7f",
]
CODECS = ("codec", "utf-8'", "surrogates not allowed", "Traceback", "unpack", "msgpack", "UnicodeEncode")


def bodies(http: httpx.Client, file_id: str) -> dict[str, dict[str, Any]]:
    """For each route that takes JSON, a body with every string field that the document names."""
    sampling = {"model": "m", "stop": ["x"], "user": "u", "metadata": {"key": "value", "list": [{"a": "b"}]}}
    message = {"role": "user", "content": "hi", "name": "n", "extra": {"deep": ["x"]}}
    parts = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    known: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {
            **sampling, "messages": [message, parts], "logit_bias": {}, "priority": "low",
            "response_format": {"type": "text"}, "tools": [],
        },
        "/v1/completions": {**sampling, "prompt": ["a b"], "suffix": "", "logit_bias": {}, "priority": "low"},
        "/v1/requests": {
            "model": "m", "messages": [message], "stop": ["x"], "metadata": ["x", {"y": "z"}],
            "priority": "low",
        },
        "/v1/batches": {
            "input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h",
            "metadata": {"key": "value"},
        },
    }  # fmt: skip
    paths = http.get("/openapi.json").json()["paths"]
    taking = {
        path
        for path, methods in paths.items()
        for operation in methods.values()
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    }
    assert taking == set(known), "a new route: give it a body here"
    return known


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Of all strings in ``value``."""
    match value:
        case str():
            yield path
        case dict() | list():
            for name, item in value.items() if isinstance(value, dict) else enumerate(value):
                yield from places(item, (*path, name))
        case _:
            return


def put(body: dict[str, Any], path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    changed = deepcopy(body)
    place: Any = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return changed


def post(http: httpx.Client, path: str, body: Any) -> httpx.Response:
    """As ASCII: httpx would refuse what is to be tried."""
    content = json.dumps(body).encode("ascii")
    return http.post(path, content=content, headers={"content-type": "application/json"})


def upload(http: httpx.Client, *lines: dict[str, Any]) -> httpx.Response:
    content = "\n".join(map(json.dumps, lines)).encode()
    return http.post("/v1/files", files={"file": ("a.jsonl", content)}, data={"purpose": "batch"})


def line(**changes: Any) -> dict[str, Any]:
    body = {"model": "m", "prompt": "x", "metadata": {"key": "value"}}
    return {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body} | changes


def look_everywhere(http: httpx.Client) -> None:
    for path in ("/v1/files", "/v1/batches", "/v1/models", "/v1/system"):
        answer = http.get(path)
        assert answer.status_code == 200, (path, answer.text)
        json.loads(answer.content.decode("utf-8"))


def refused(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert not any(word in error["message"] for word in CODECS), error
    return error


@pytest.fixture
def file_id(http: httpx.Client, model: FakeWorker) -> str:
    del model
    return upload(http, line()).json()["id"]


def test_surrogates_are_named_by_their_field(http: httpx.Client, file_id: str) -> None:
    for path, body in bodies(http, file_id).items():
        for place in places(body):
            for text in SURROGATES:
                error = refused(post(http, path, put(body, place, text)))
                assert error["param"] == ".".join(map(str, place)), (path, place)
        error = refused(post(http, path, body | {"\ud800": 1}))
        assert "must have names of valid Unicode" in error["message"]
    look_everywhere(http)


def test_raw_bytes(http: httpx.Client, model: FakeWorker) -> None:
    del model
    for raw in (b"\xed\xa0\x80", b"\xff", b"\xc0\x80"):
        body = b'{"model": "m", "prompt": "' + raw + b'"}'
        for path in ("/v1/completions", "/v1/requests"):
            answer = http.post(path, content=body, headers={"content-type": "application/json"})
            assert refused(answer)["message"] == "The body is not valid UTF-8."


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("NaN", "finite"),
        ("-Infinity", "finite"),
        ("1e999", "finite"),
        (str(1 << 64), "64 bits"),
        (str(-(1 << 63) - 1), "64 bits"),
        ("[" * 70 + "]" * 70, "nested"),
        ('{"a":' * 300 + "1" + "}" * 300, "nested"),
        ("[" * 100_000, "nested|JSON"),
        ("9" * 5000, "JSON|64 bits"),
    ],
)
def test_values_that_nobody_can_carry(
    http: httpx.Client, model: FakeWorker, value: str, problem: str
) -> None:
    del model
    for path in ("/v1/completions", "/v1/requests"):
        body = '{"model": "m", "prompt": "x", "metadata": {"key": ' + value + "}}"
        answer = http.post(path, content=body, headers={"content-type": "application/json"})
        assert any(word in refused(answer)["message"] for word in problem.split("|")), answer.text


def test_odd_text_comes_back_as_it_was(http: httpx.Client, file_id: str) -> None:
    """Taken or refused, never a failure; what is taken can be read."""
    strings = st.sampled_from(ODD) | st.text(max_size=20)
    routes = bodies(http, file_id)
    chosen = [(path, place) for path, body in routes.items() for place in places(body)]

    @settings(
        max_examples=150,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(where=st.sampled_from(chosen), text=strings, name=strings)
    def examine(where: tuple[str, tuple[str | int, ...]], text: str, name: str) -> None:
        path, place = where
        body = put(routes[path], place, text)
        if isinstance(body["metadata"], dict):
            body["metadata"][name] = text
        answer = post(http, path, body)
        assert answer.status_code < 500 or answer.status_code == 504, answer.text
        if answer.status_code == 400:
            refused(answer)
        elif path == "/v1/requests" and answer.status_code == 202:
            while (state := http.get(answer.headers["location"]).json())["status"] != "finished":
                pass
            assert state["result"]["metadata"] == body["metadata"]
        elif path == "/v1/batches" and answer.status_code == 200:
            assert http.get(f"/v1/batches/{answer.json()['id']}").json()["metadata"] == body["metadata"]
            look_everywhere(http)

    examine()
    look_everywhere(http)


def test_lines_of_uploads(http: httpx.Client, model: FakeWorker) -> None:
    del model
    for place in places(line()):
        error = refused(upload(http, line(custom_id="first"), put(line(), place, "\ud800")))
        assert f"file: line 2: {'.'.join(map(str, place))}: must be valid Unicode" in error["message"]
    look_everywhere(http)


@pytest.mark.parametrize("charset", ["utf-8", "utf-16", "unicode_escape", "punycode", "utf-7", "none"])
def test_names_of_uploads(http: httpx.Client, model: FakeWorker, charset: str) -> None:
    del model
    for name in (b"\\ud800\\udfff", b"\xed\xa0\x80", b"\xff\x00\x01", b"a%00b", b"../../x", b"x" * 1000):
        content = json.dumps(line()).encode()
        body = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        body += b'--b\r\nContent-Disposition: form-data; name="file"; filename="' + name + b'"\r\n\r\n'
        body += content + b"\r\n--b--\r\n"
        kind = {"content-type": f"multipart/form-data; boundary=b; charset={charset}"}
        answer = http.post("/v1/files", content=body, headers=kind)
        assert answer.status_code in (200, 400), answer.text
        if answer.status_code == 200:
            assert http.get(f"/v1/files/{answer.json()['id']}").status_code == 200
            look_everywhere(http)
            http.delete(f"/v1/files/{answer.json()['id']}")


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("host", b"["),
        ("host", b"[::1"),
        ("host", b"\xff"),
        ("idempotency-key", b"\xed\xa0\x80\xff"),
        ("x-request-id", b"\xff"),
        ("traceparent", b"\xff" * 55),
        ("authorization", b"Bearer \xff"),
        ("last-event-id", b"\xff"),
        ("content-type", b"application/json; charset=\xff"),
    ],
)
def test_headers(http: httpx.Client, model: FakeWorker, header: str, value: bytes) -> None:
    del model
    name = header.encode()
    answers = [
        http.get("/v1/models", headers=[(name, value)]),
        http.get("/v1/requests/x/events", headers=[(name, value)]),
        http.post("/v1/completions", json={"model": "m", "prompt": "x"}, headers=[(name, value)]),
    ]
    assert all(answer.status_code < 500 for answer in answers), [answer.text for answer in answers]


def test_paths_and_queries(http: httpx.Client, model: FakeWorker) -> None:
    del model
    for text in ("%00", "%ED%A0%80", "%FF", "a%0D%0Ab", "%7B%7D", "x" * 4000):
        for path in ("models/{}", "requests/{}", "requests/{}/events", "files/{}", "files/file-{}",
                     "files/file-{}/content", "batches/{}", "batches/batch_{}"):  # fmt: skip
            assert http.get("/v1/" + path.format(text)).status_code == 404
        assert http.get(f"/v1/requests/x/events?after={text}").status_code in (400, 404)
        assert http.get(f"/v1/requests/x/events?format={text}").status_code == 400
        assert http.get(f"/v1/system/events?interval={text}").status_code == 400
    assert http.get("/v1/system/events?interval=nan").status_code == 400


def test_socket(gateway: RunningGateway, model: FakeWorker) -> None:
    del model
    request = {"model": "m", "prompt": "x", "metadata": {"key": "value"}}
    with connect(gateway.url.replace("http", "ws") + "/v1/ws") as socket:
        message = {"type": "submit", "ref": "r", "request": request}
        for place in places(message):
            socket.send(json.dumps(put(message, place, "\ud800")))
            error = json.loads(socket.recv())
            assert (error["type"], error["error"]["param"]) == ("error", ".".join(map(str, place)))
        for bad in ("NaN", '{"type": NaN}', "[" * 100_000, '"x"', b"\xff\x00"):
            socket.send(bad)
            assert json.loads(socket.recv())["type"] == "error"
        socket.send(json.dumps(message))
        assert json.loads(socket.recv())["type"] == "accepted", "it goes on"


def test_stored_by_another_version(
    http: httpx.Client, file_id: str, redis_client: redis.Redis, worker: FakeWorker
) -> None:
    """Descriptions that this version would not have written spoil no list."""
    made = [
        post(http, "/v1/batches", {"input_file_id": file_id, "endpoint": "/v1/completions"}).json()["id"]
        for _ in range(3)
    ]
    keys = GatewayKeys("headrace")
    redis_client.hset(keys.batch(made[0]), "metadata", '{"a": "\\ud800"}')
    redis_client.hset(keys.batch(made[1]), "total", b"\xff")
    redis_client.hset(keys.file(file_id), "filename", b"\xff\xfe")
    redis_client.hset(worker.keys.worker("m", "other"), b"\xff", b"\xff")
    redis_client.hset(b"headrace:worker:{\xff}:x", "a", "b")
    redis_client.expire(b"headrace:worker:{\xff}:x", 60)
    redis_client.expire(worker.keys.worker("m", "other"), 60)
    look_everywhere(http)
    listed = {batch["id"]: batch["metadata"] for batch in http.get("/v1/batches").json()["data"]}
    assert listed == {made[0]: {"a": "?"}, made[2]: None}


def test_metadata_from_other_producers(
    http: httpx.Client, redis_client: redis.Redis, worker: FakeWorker
) -> None:
    """What msgpack carries and JSON does not, echoed by a worker."""
    deep: Any = "x"
    for _ in range(400):
        deep = [deep]
    for number, metadata in enumerate([deep, float("nan"), b"\xff", {"a": float("inf")}, 1 << 63]):
        request_id = f"bare{number}"
        body = {"v": 1, "id": request_id, "model": "m", "prompt": "x"}
        redis_client.xadd(worker.keys.queue("m", "normal", 0), {"r": msgpack.packb(body)})
        worker.take()
        worker.emit(request_id, "x")
        worker.finish(request_id, metadata=metadata)
        for path in ("", "/events"):
            answer = http.get(f"/v1/requests/{request_id}{path}")
            assert answer.status_code == 200, answer.text
            assert not any(word in answer.text for word in ("NaN", "Infinity"))
