"""``docker compose up``: real containers, killed and restarted while somebody reads a stream."""

import json
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from compose_project import ComposeProject, compose_project
from docker.models.containers import Container
from httpx_sse import connect_sse
from prometheus_client.parser import text_string_to_metric_families
from redis_servers import free_port
from waiting import eventually_sync

pytestmark = pytest.mark.docker
MODEL = "gemma-3-270m"
TOKENS = 300
MINUTES = 600.0


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def project(port: int) -> Iterator[ComposeProject]:
    with compose_project({"HEADRACE_PORT": str(port), "HEADRACE_LEASE": "4"}) as project:
        project.run("up", "--detach", "--scale", "worker=2")
        yield project


@pytest.fixture
def http(project: ComposeProject, port: int) -> Iterator[httpx.Client]:
    """The gateway, ready, with two workers behind it."""
    del project
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:

        def is_up() -> bool:
            try:
                return http.get("/readyz").status_code == 200 and workers(http) == 2
            except httpx.TransportError:
                return False

        eventually_sync(is_up, MINUTES)
        yield http


def workers(http: httpx.Client) -> int:
    families = text_string_to_metric_families(http.get("/metrics").text)
    return int(
        sum(one.value for family in families for one in family.samples if one.name == "headrace_workers")
    )


def health(container: Container) -> str:
    container.reload()
    return container.attrs["State"]["Health"]["Status"]


def read_to_the_end(http: httpx.Client, request_id: str, at: int, meanwhile: Callable[[], None]) -> str:
    """The text of a request that is followed as a browser does, ``meanwhile`` done after ``at`` tokens.

    Each token must come once and in order.
    """
    tokens, text, position, done = 0, "", "", False
    give_up = time.monotonic() + MINUTES
    while not done:
        assert time.monotonic() < give_up, f"the stream stops after {tokens} tokens"
        headers = {"Last-Event-ID": position} if position else {}
        try:
            with connect_sse(http, "GET", f"/v1/requests/{request_id}/events", headers=headers) as source:
                for event in source.iter_sse():
                    if not event.data:  # how long to wait before coming back
                        continue
                    body = json.loads(event.data)
                    assert body["seq"] == tokens, "a token is missing or comes twice"
                    position = event.id
                    if body["type"] == "done":
                        assert body["finish_reason"] == "length"
                        done = True
                        break
                    before = tokens
                    tokens += len(body["tokens"])
                    text += body["text"]
                    if before < at <= tokens:
                        meanwhile()
        except httpx.TransportError:
            time.sleep(0.2)
    assert tokens == TOKENS
    return text


def submit(http: httpx.Client) -> str:
    body = {"model": MODEL, "prompt": "The mill wheel turns", "max_tokens": TOKENS, "ignore_eos": True}
    answer = http.post("/v1/requests", json=body)
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]


def test_everything_is_healthy_and_confined(project: ComposeProject, http: httpx.Client) -> None:
    del http
    for service, count in (("valkey", 1), ("worker", 2), ("gateway", 1)):
        containers = project.containers(service)
        assert len(containers) == count
        for container in containers:
            eventually_sync(lambda container=container: health(container) == "healthy", MINUTES)
            status, _ = container.exec_run(["sh", "-c", "touch /of-this-test"])
            assert status != 0, f"the root of {service} can be written to"
            published = [address for address in container.ports.values() if address]
            assert bool(published) == (service == "gateway")
            if service != "valkey":
                assert container.exec_run(["id", "-u"]).output.strip() not in (b"0", b"")
    look = "import importlib.util as u, sys; sys.exit(bool(u.find_spec('torch')))"
    assert project.container("gateway").exec_run(["python3", "-c", look]).exit_code == 0
    assert project.containers("worker")[0].exec_run(["python3", "-c", look]).exit_code == 1


def test_an_answer(http: httpx.Client) -> None:
    body = {"model": MODEL, "prompt": "The mill wheel turns", "max_tokens": 8}
    answer = http.post("/v1/completions", json=body, timeout=MINUTES)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] <= 8


def test_valkey_restarts_within_a_stream(project: ComposeProject, http: httpx.Client) -> None:
    request_id = submit(http)
    text = read_to_the_end(http, request_id, 20, lambda: project.container("valkey").restart(timeout=30))
    assert http.get(f"/v1/requests/{request_id}").json()["result"]["text"] == text


def test_a_worker_is_killed_within_a_stream(project: ComposeProject, http: httpx.Client) -> None:
    request_id = submit(http)

    def kill_its_worker() -> None:
        def holder() -> str | None:
            for worker in http.get("/v1/system").json()["workers"]:
                if any(sequence["id"] == request_id for sequence in worker["sequences"]):
                    return worker["name"]
            return None

        name = eventually_sync(holder)
        (container,) = (one for one in project.containers("worker") if name.startswith(one.id[:12]))
        container.kill()

    text = read_to_the_end(http, request_id, 20, kill_its_worker)
    assert len(project.containers("worker")) == 1
    assert http.get(f"/v1/requests/{request_id}").json()["result"]["text"] == text


def test_the_operator_sees_the_queue(project: ComposeProject) -> None:
    seen = json.loads(
        project.run("--profile", "tools", "run", "--rm", "operator", "top", "--json").strip().splitlines()[-1]
    )
    assert {queue["model"] for queue in seen["queues"]} == {MODEL}
