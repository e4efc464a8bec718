"""The WebSocket: several requests over one connection, and the same doors as everywhere."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_worker import FakeWorker
from gateway_server import RunningGateway, running_gateway
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from headrace.clients.gateway.access.api_keys import make_key

JOB = {"model": "m", "prompt": "a b c"}


def address(gateway: RunningGateway) -> str:
    return gateway.v1.replace("http", "ws") + "/ws"


def say(socket: ClientConnection, **message: Any) -> None:
    socket.send(json.dumps(message))


def hear(socket: ClientConnection) -> dict[str, Any]:
    return json.loads(socket.recv(timeout=30))


@pytest.fixture
def socket(gateway: RunningGateway) -> Iterator[ClientConnection]:
    with connect(address(gateway)) as socket:
        yield socket


def test_several_at_a_time(socket: ClientConnection, model: FakeWorker) -> None:
    del model
    for ref in ("x", "y"):
        say(socket, type="submit", ref=ref, request=JOB | {"prompt": f"for {ref}"})
    ids: dict[str, str] = {}
    texts: dict[str, str] = {}
    done = 0
    while done < 2:
        message = hear(socket)
        match message["type"]:
            case "accepted":
                ids[message["ref"]] = message["id"]
            case "delta":
                texts[message["id"]] = texts.get(message["id"], "") + message["text"]
            case "done":
                done += 1
                assert message["finish_reason"] == "stop"
                assert message["position"].endswith(".end")
    assert {ref: texts[ids[ref]] for ref in ids} == {"x": "for x ", "y": "for y "}


def test_leave_and_go_on(gateway: RunningGateway, worker: FakeWorker) -> None:
    with connect(address(gateway)) as first:
        say(first, type="submit", request=JOB)
        request_id = hear(first)["id"]
        assert worker.take().id == request_id
        worker.emit(request_id, "one ")
        position = hear(first)["position"]
    worker.emit(request_id, "two")
    with connect(address(gateway)) as second:
        say(second, type="follow", id=request_id, after=position)
        assert hear(second)["text"] == "two"
        worker.finish(request_id)
        assert hear(second)["type"] == "done"


def test_cancel(socket: ClientConnection, worker: FakeWorker) -> None:
    say(socket, type="submit", request=JOB)
    request_id = hear(socket)["id"]
    worker.take()
    say(socket, type="cancel", id=request_id)
    while not worker.cancelled(request_id):
        pass
    worker.finish(request_id, "cancelled")
    assert hear(socket)["finish_reason"] == "cancelled"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("{", {"type": "error", "code": "invalid_json"}),
        ("[" * 50_000, {"type": "error", "code": "invalid_json"}),
        ("[]", {"type": "error"}),
        ('{"type": "dance"}', {"type": "error"}),
        ('{"type": "follow"}', {"type": "error"}),
        ('{"type": "follow", "id": "x"}', {"type": "error", "id": "x", "code": "not_found"}),
        ('{"type": "follow", "id": "x", "after": "y"}', {"type": "error", "id": "x", "param": "after"}),
        ('{"type": "cancel", "id": "x"}', {"type": "error", "id": "x", "code": "not_found"}),
        (
            '{"type": "submit", "ref": "r", "request": {"model": "m"}}',
            {"type": "error", "ref": "r", "param": "request"},
        ),
        (
            '{"type": "submit", "ref": "r", "request": {"model": "no", "prompt": "x"}}',
            {"type": "error", "ref": "r", "code": "model_not_found"},
        ),
        (
            '{"type": "submit", "ref": "r", "request": {"model": "m", "prompt": "x", "webhook": "y"}}',
            {"type": "error", "ref": "r", "param": "webhook"},
        ),
    ],
)
def test_nonsense_leaves_the_socket_open(
    socket: ClientConnection, model: FakeWorker, message: str, expected: dict[str, str]
) -> None:
    del model
    socket.send(message)
    answer = hear(socket)
    assert expected.items() <= (answer | answer["error"] | {"type": answer["type"]}).items()
    say(socket, type="submit", request=JOB)
    assert hear(socket)["type"] == "accepted"


class TestAccess:
    @pytest.fixture
    def keys(self) -> dict[str, tuple[str, str]]:
        return {tenant: make_key(tenant, streams=3) for tenant in ("alice", "mallory")}

    @pytest.fixture
    def gateway(
        self, redis_url: str, tmp_path: Path, keys: dict[str, tuple[str, str]]
    ) -> Iterator[RunningGateway]:
        path = tmp_path / "keys.toml"
        path.write_text("\n".join(table for _, table in keys.values()))
        with running_gateway(redis_url, keys_file=path, cors_origins=("https://app.example",)) as gateway:
            yield gateway

    def test_key_in_header_or_first_message(
        self, gateway: RunningGateway, model: FakeWorker, keys: dict[str, tuple[str, str]]
    ) -> None:
        del model
        key = keys["alice"][0]
        with connect(address(gateway), additional_headers={"Authorization": f"Bearer {key}"}) as socket:
            say(socket, type="submit", request=JOB)
            request_id = hear(socket)["id"]
        with connect(address(gateway)) as socket:
            say(socket, type="authorize", key=key)
            say(socket, type="follow", id=request_id)
            assert hear(socket)["type"] == "delta"

    @pytest.mark.parametrize(
        "first",
        [
            '{"type": "authorize", "key": "hr_x"}',
            '{"type": "authorize", "key": 7}',
            "{",
            '{"type": "follow"}',
        ],
    )
    def test_nothing_without(self, gateway: RunningGateway, first: str) -> None:
        with connect(address(gateway)) as socket:
            socket.send(first)
            with pytest.raises(ConnectionClosed) as caught:
                socket.recv(timeout=30)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1008

    def test_anothers_request(
        self, gateway: RunningGateway, worker: FakeWorker, keys: dict[str, tuple[str, str]]
    ) -> None:
        with connect(address(gateway)) as alice, connect(address(gateway)) as mallory:
            say(alice, type="authorize", key=keys["alice"][0])
            say(mallory, type="authorize", key=keys["mallory"][0])
            say(alice, type="submit", request=JOB)
            request_id = hear(alice)["id"]
            worker.emit(worker.take().id, "secret")
            for kind in ("follow", "cancel"):
                say(mallory, type=kind, id=request_id)
                known = hear(mallory)
                say(mallory, type=kind, id="0" * 64)
                assert known["error"] == hear(mallory)["error"]
            assert not worker.cancelled(request_id)

    def test_streams_are_counted(
        self, gateway: RunningGateway, worker: FakeWorker, keys: dict[str, tuple[str, str]]
    ) -> None:
        del worker
        with connect(address(gateway)) as socket:
            say(socket, type="authorize", key=keys["alice"][0])
            for number in range(3):
                say(socket, type="submit", ref=str(number), request=JOB)
            answers = [hear(socket) for _ in range(3)]
            assert [answer["type"] for answer in answers] == ["accepted", "accepted", "error"]
            assert answers[2]["error"]["code"] == "too_many_streams"

    def test_pages_of_other_origins(self, gateway: RunningGateway) -> None:
        with pytest.raises(InvalidStatus):
            connect(address(gateway), origin=Origin("https://evil.example")).__enter__()
        for origin in ("https://app.example", gateway.url):
            with connect(address(gateway), origin=Origin(origin)):
                pass


def test_a_gateway_that_stops_says_so(redis_url: str, worker: FakeWorker) -> None:
    with running_gateway(redis_url) as gateway, connect(address(gateway)) as socket:
        say(socket, type="submit", request=JOB)
        hear(socket)
        worker.take()
        gateway.gateway.slots.drain()
        with pytest.raises(ConnectionClosed) as caught:
            socket.recv(timeout=30)
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1012
