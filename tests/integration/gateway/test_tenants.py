"""What a tenant may do, and all the ways in which it tries to do more."""

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fake_worker import FakeWorker
from gateway_server import RunningGateway, running_gateway

from headrace.clients.gateway.access.api_keys import make_key
from headrace.clients.gateway.access.tenant_ids import new_id
from headrace.clients.protocol import Priority

ASK = {"model": "m", "prompt": "a b"}


class Keys:
    """A file of keys that grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def add(self, tenant: str, priority: Priority = "normal", **limits: int | bool) -> dict[str, str]:
        """Headers with a new key."""
        key, table = make_key(tenant, priority=priority, **limits)
        with self.path.open("a") as file:
            file.write(table + "\n")
        return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "keys.toml")


@pytest.fixture
def alice(keys: Keys) -> dict[str, str]:
    return keys.add("alice")


@pytest.fixture
def mallory(keys: Keys) -> dict[str, str]:
    return keys.add("mallory", priority="low", streams=2)


@pytest.fixture
def gateway(
    redis_url: str, keys: Keys, alice: dict[str, str], mallory: dict[str, str]
) -> Iterator[RunningGateway]:
    del alice, mallory
    with running_gateway(redis_url, keys_file=keys.path) as running:
        yield running


def begin(http: httpx.Client, headers: dict[str, str]) -> str:
    body = ASK | {"stream": True, "cancel_on_disconnect": False}
    with http.stream("POST", "/v1/completions", json=body, headers=headers) as response:
        assert response.status_code == 200
        return response.headers["x-headrace-request"]


ROUTES = [
    ("GET", "/v1/models"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/requests/x"),
    ("DELETE", "/v1/requests/x"),
    ("GET", "/v1/requests/x/events"),
    ("GET", "/v1/no-such-route"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_nothing_without_a_key(http: httpx.Client, alice: dict[str, str], method: str, path: str) -> None:
    good = alice["Authorization"]
    flipped = good[:-1] + ("A" if good[-1] != "A" else "B")
    for headers in (
        {},
        {"Authorization": flipped},
        {"Authorization": good[:-1]},
        {"Authorization": good + "A"},
        {"Authorization": good.replace("Bearer", "Basic")},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer " + hashlib.sha256(good.removeprefix("Bearer ").encode()).hexdigest()},
        {"X-Api-Key": good.removeprefix("Bearer ")},
        {"Authorization": "Bearer hr_000000000000_" + "A" * 43},
    ):
        answer = http.request(method, path, headers=headers, json=ASK if method == "POST" else None)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["code"] == "invalid_api_key"


def test_every_documented_route_but_those_of_operation_needs_a_key(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    opened = set()
    for path, methods in paths.items():
        for method in methods:
            url = path.replace("{", "").replace("}", "")
            if http.request(method.upper(), url).status_code != 401:
                opened.add(path)
    assert opened == {"/healthz", "/readyz", "/metrics"}


def test_another_tenants_request_does_not_exist(
    http: httpx.Client, worker: FakeWorker, alice: dict[str, str], mallory: dict[str, str]
) -> None:
    request_id = begin(http, alice)
    worker.emit(worker.take().id, "secret")
    never = new_id("alice")
    own_never = new_id("mallory")
    for method, suffix in [("GET", ""), ("DELETE", ""), ("GET", "/events"), ("GET", "/events?format=chat")]:
        answers = [
            http.request(method, f"/v1/requests/{some_id}{suffix}", headers=mallory)
            for some_id in (request_id, never, own_never, request_id + "-1", "x")
        ]
        assert {answer.status_code for answer in answers} == {404}
        assert len({answer.text for answer in answers}) == 1, "nothing tells them apart"
    assert not worker.cancelled(request_id)
    assert http.get(f"/v1/requests/{request_id}", headers=alice).json()["status"] == "running"


def test_an_id_cannot_be_made_ones_own(
    http: httpx.Client, worker: FakeWorker, alice: dict[str, str], mallory: dict[str, str]
) -> None:
    request_id = begin(http, alice)
    assert worker.take().id == request_id
    mine = new_id("mallory")
    start = request_id[:32]
    forged = start + hashlib.sha256(start.encode() + b"\1mallory").hexdigest()[:32]
    for guess in (
        forged,
        start + mine[32:],
        mine[:32] + request_id[32:],
        request_id.upper(),
        f"{request_id}%0a",
    ):
        assert http.get(f"/v1/requests/{guess}", headers=mallory).status_code == 404


def test_the_same_idempotency_key_of_two_tenants_is_two_requests(
    http: httpx.Client, model: FakeWorker, alice: dict[str, str], mallory: dict[str, str]
) -> None:
    del model
    ids = [
        http.post("/v1/completions", json=ASK, headers={**headers, "Idempotency-Key": "k"}).json()["id"]
        for headers in (alice, alice, mallory)
    ]
    assert ids[0] == ids[1] != ids[2]


def test_two_keys_of_a_tenant_share_its_requests(
    http: httpx.Client, keys: Keys, worker: FakeWorker, alice: dict[str, str]
) -> None:
    del worker
    request_id = begin(http, alice)
    second = keys.add("alice")
    while (answer := http.get(f"/v1/requests/{request_id}", headers=second)).status_code == 401:
        pass  # until the file is read again
    assert answer.status_code == 200


def test_a_key_that_is_taken_out_of_the_file_ends(
    http: httpx.Client, keys: Keys, alice: dict[str, str], mallory: dict[str, str]
) -> None:
    tables = keys.path.read_text().split("\n\n")
    keys.path.write_text("\n\n".join(table for table in tables if "alice" not in table))
    while http.get("/v1/models", headers=alice).status_code == 200:
        pass
    assert http.get("/v1/models", headers=mallory).status_code == 200
    keys.path.write_text("this is no TOML")
    for _ in range(3):
        threading.Event().wait(1)
        assert http.get("/v1/models", headers=mallory).status_code == 200, "a broken file changes nothing"


def test_requests_carry_tenant_priority_and_trace(
    http: httpx.Client, worker: FakeWorker, alice: dict[str, str], mallory: dict[str, str]
) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    begin(http, alice | {"traceparent": trace})
    request = worker.take()
    assert (request.tenant, request.priority) == ("alice", "normal")
    assert request.trace is not None
    assert request.trace.startswith(trace[:36])
    assert request.trace != trace
    for wanted, given in [("high", "low"), ("low", "low")]:
        with http.stream(
            "POST", "/v1/completions", json=ASK | {"stream": True, "priority": wanted}, headers=mallory
        ):
            assert worker.take().priority == given
    with http.stream(
        "POST", "/v1/completions", json=ASK | {"stream": True, "tenant": "alice"}, headers=mallory
    ):
        assert worker.take().tenant == "mallory"


def test_streams_of_a_key_are_counted(
    http: httpx.Client, worker: FakeWorker, alice: dict[str, str], mallory: dict[str, str]
) -> None:
    del worker
    request_id = begin(http, mallory)
    path = f"/v1/requests/{request_id}/events"
    with http.stream("GET", path, headers=mallory), http.stream("GET", path, headers=mallory):
        third = http.get(path, headers=mallory)
        assert (third.status_code, third.json()["error"]["code"]) == (429, "too_many_streams")
        refused = http.post("/v1/completions", json=ASK | {"stream": True}, headers=mallory)
        assert refused.status_code == 429
        begin(http, alice)
    while http.get(path + "?after=0.0.end", headers=mallory).status_code != 204:
        pass
    begin_again = http.stream("GET", path, headers=mallory)
    while True:
        with begin_again as response:
            if response.status_code == 200:
                return
        begin_again = http.stream("GET", path, headers=mallory)


class TestRate:
    def test_over_all_gateways(
        self, redis_url: str, keys: Keys, gateway: RunningGateway, model: FakeWorker
    ) -> None:
        del model
        slow = keys.add("slow", rate=2, burst=3)
        with running_gateway(redis_url, keys_file=keys.path) as other:
            statuses = [
                httpx.post(f"{each.url}/v1/completions", json=ASK, headers=slow, timeout=30)
                for each in (other, other, other, other)
            ]
            codes = [answer.status_code for answer in statuses]
            assert codes == [200, 200, 200, 429]
            assert 25 <= int(statuses[-1].headers["retry-after"]) <= 30
            while (
                answer := httpx.post(f"{gateway.url}/v1/completions", json=ASK, headers=slow, timeout=30)
            ).status_code == 401:
                pass
            assert answer.status_code == 429

    def test_each_choice_counts(self, redis_url: str, keys: Keys, model: FakeWorker) -> None:
        del model
        slow = keys.add("slow", rate=1, burst=3)
        with running_gateway(redis_url, keys_file=keys.path) as gateway:
            url = f"{gateway.url}/v1/completions"
            assert httpx.post(url, json=ASK | {"n": 3}, headers=slow, timeout=30).status_code == 200
            assert httpx.post(url, json=ASK, headers=slow, timeout=30).status_code == 429
