"""Batches as the ``openai`` package runs them, and what becomes of them when gateways die."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import redis
from fake_worker import FakeWorker
from gateway_process import gateway_process
from gateway_server import RunningGateway, running_gateway, running_model, silence
from waiting import eventually_sync

from headrace.clients.gateway.access.api_keys import make_key
from headrace.clients.gateway.redis_keys import GatewayKeys


def line(custom_id: str, text: str, url: str = "/v1/completions", **fields: Any) -> dict[str, Any]:
    if url == "/v1/completions":
        body = {"model": "m", "prompt": text}
    else:
        body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body | fields}


def jsonl(*lines: dict[str, Any]) -> bytes:
    return "\n".join(map(json.dumps, lines)).encode()


def results(content: str) -> dict[str, dict[str, Any]]:
    return {item["custom_id"]: item for item in map(json.loads, content.splitlines())}


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=gateway.v1, api_key="unused", max_retries=0, timeout=30) as client:
        yield client


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.clients.gateway.batches.runner._RENEW_EVERY", 0.2)


def start(client: openai.OpenAI, content: bytes, endpoint: Any = "/v1/completions") -> str:
    file = client.files.create(file=("lines.jsonl", content), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h").id


def wait(client: openai.OpenAI, batch_id: str, *until: str) -> Any:
    while (batch := client.batches.retrieve(batch_id)).status not in until:
        threading.Event().wait(0.05)
    return batch


def test_from_upload_to_results(client: openai.OpenAI, model: FakeWorker) -> None:
    del model
    lines = [line(f"l{number}", f"this is {number}") for number in range(40)]
    content = jsonl(*lines)
    file = client.files.create(file=("lines.jsonl", content), purpose="batch")
    assert (file.filename, file.purpose, file.status) == ("lines.jsonl", "batch", "processed")
    assert client.files.content(file.id).text.splitlines() == content.decode().splitlines()
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h", metadata={"a": "b"}
    )
    assert batch.status in ("validating", "in_progress")
    assert batch.metadata == {"a": "b"}
    batch = wait(client, batch.id, "completed")
    assert batch.request_counts is not None
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (40, 40, 0)
    assert batch.error_file_id is None
    assert batch.completed_at
    assert batch.output_file_id
    found = results(client.files.content(batch.output_file_id).text)
    texts = {name: item["response"]["body"]["choices"][0]["text"] for name, item in found.items()}
    assert texts == {f"l{number}": f"this is {number} " for number in range(40)}
    assert [item.id for item in client.batches.list()] == [batch.id]
    assert file.id in [item.id for item in client.files.list()]
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.content(file.id)


def test_chats_and_lines_that_fail(client: openai.OpenAI, model: FakeWorker) -> None:
    del model
    chat = "/v1/chat/completions"
    content = jsonl(
        line("good", "a b", chat, n=2),
        line("hot", "x", chat, temperature=9),
        line("elsewhere", "x"),
        line("other model", "x", chat, model="m9"),
        line("streams", "x", chat, stream=True),
    )
    batch = wait(client, start(client, content, chat), "completed")
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 4)
    good = results(client.files.content(batch.output_file_id).text)["good"]["response"]
    assert [choice["message"]["content"] for choice in good["body"]["choices"]] == ["a b ", "a b "]
    bad = results(client.files.content(batch.error_file_id).text)
    told = {name: (item["response"]["status_code"], item["error"]["code"]) for name, item in bad.items()}
    assert told == {
        "hot": (400, "invalid_value"),
        "elsewhere": (400, "invalid_value"),
        "other model": (404, "model_not_found"),
        "streams": (400, "invalid_value"),
    }


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "no lines"),
        (b"\n\n", "no lines"),
        (b"{}", "line 1: custom_id"),
        (jsonl(line("a", "x")) + b"\n{", "line 2: is not JSON"),
        (jsonl(line("a", "x"), line("a", "y")), "line 2: custom_id"),
        (jsonl(line("a", "x") | {"method": "GET"}), "line 1: must be a POST"),
        (jsonl(line("a", "x") | {"url": "/v1/embeddings"}), "line 1: must be a POST"),
        (jsonl(line("a", "x") | {"body": []}), "line 1: body"),
        (b"[" * 100_000, "line 1: is not JSON"),
        (b"\xff\xfe", "line 1: is not JSON"),
    ],
)
def test_bad_uploads(client: openai.OpenAI, content: bytes, problem: str) -> None:
    with pytest.raises(openai.BadRequestError, match=problem):
        client.files.create(file=("lines.jsonl", content), purpose="batch")


def test_bounds(redis_url: str) -> None:
    with (
        running_gateway(redis_url, max_batch_lines=2, max_files=2, max_upload=2000) as gateway,
        openai.OpenAI(base_url=gateway.v1, api_key="unused", max_retries=0) as client,
    ):
        lines = [line(f"l{number}", "x") for number in range(3)]
        with pytest.raises(openai.APIStatusError) as caught:
            client.files.create(file=("a.jsonl", jsonl(*lines)), purpose="batch")
        assert caught.value.status_code == 413
        with pytest.raises(openai.APIStatusError) as caught:
            client.files.create(file=("a.jsonl", jsonl(line("a", "x" * 3000))), purpose="batch")
        assert caught.value.status_code == 413
        for _ in range(2):
            file = client.files.create(file=("a.jsonl", jsonl(*lines[:2])), purpose="batch")
        with pytest.raises(openai.ConflictError):
            client.files.create(file=("a.jsonl", jsonl(*lines[:2])), purpose="batch")
        client.files.delete(file.id)
        client.files.create(file=("a.jsonl", jsonl(*lines[:2])), purpose="batch")
        with pytest.raises(openai.BadRequestError):
            client.files.create(file=("a.jsonl", jsonl(*lines[:2])), purpose="fine-tune")


def test_another_gateway_goes_on(redis_url: str, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.clients.gateway.batches.runner._LEASE", 1.0)
    lines = [line(f"l{number}", f"{number}") for number in range(10)]
    with (
        running_gateway(redis_url, batch_window=4) as first,
        openai.OpenAI(base_url=first.v1, api_key="unused") as client,
    ):
        batch_id = start(client, jsonl(*lines))
        for _ in range(3):
            request = worker.take()
            worker.emit(request.id, request.prompt or "")
            worker.finish(request.id)
        while client.batches.retrieve(batch_id).request_counts.completed < 3:  # pyright: ignore
            pass
    with (
        running_model(redis_url),
        running_gateway(redis_url) as second,
        openai.OpenAI(base_url=second.v1, api_key="unused") as client,
    ):
        batch = wait(client, batch_id, "completed")
        found = results(client.files.content(batch.output_file_id).text)
    texts = {name: item["response"]["body"]["choices"][0]["text"].strip() for name, item in found.items()}
    assert texts == {f"l{number}": f"{number}" for number in range(10)}


def test_gateways_are_killed(redis_url: str, worker: FakeWorker, tmp_path: Path) -> None:
    """Three gateways, killed one after the other in the middle; the window closes over the last lines."""
    names = [f"l{number}" for number in range(12)]
    batch_id = ""
    for round_ in range(3):
        with (
            gateway_process(redis_url, tmp_path / f"{round_}.log") as (process, url),
            openai.OpenAI(base_url=f"{url}/v1", api_key="unused") as client,
        ):
            batch_id = batch_id or start(client, jsonl(*[line(name, name) for name in names]))
            for _ in range(3):
                request = worker.take()
                worker.emit(request.id, request.prompt or "")
                worker.finish(request.id)
            done = 3 * (round_ + 1)
            while client.batches.retrieve(batch_id).request_counts.completed < done:  # pyright: ignore
                pass
            process.kill()
        end_lease(redis_url)
    with (
        gateway_process(redis_url, tmp_path / "last.log") as (_, url),
        openai.OpenAI(base_url=f"{url}/v1", api_key="unused") as client,
    ):
        close_window(redis_url, batch_id)
        batch = wait(client, batch_id, "completed", "expired")
        answered = results(client.files.content(batch.output_file_id).text)
        left = results(client.files.content(batch.error_file_id).text)
    assert batch.status == "expired"
    assert (len(answered), len(left)) == (9, 3)
    assert {*answered, *left} == set(names)
    assert {name: item["response"]["body"]["choices"][0]["text"] for name, item in answered.items()} == {
        name: name for name in answered
    }


def end_lease(redis_url: str) -> None:
    """As if the time of the dead gateway's lease had passed."""
    due = GatewayKeys("headrace").due("batches")
    with redis.Redis.from_url(redis_url) as server:
        for task in server.zrange(due, 0, -1):
            server.zadd(due, {task: 1})


def test_cancelled(client: openai.OpenAI, worker: FakeWorker) -> None:
    batch_id = start(client, jsonl(*[line(f"l{number}", "x") for number in range(5)]))
    first = worker.take()
    worker.emit(first.id, "x")
    worker.finish(first.id)
    while client.batches.retrieve(batch_id).request_counts.completed < 1:  # pyright: ignore
        pass
    assert client.batches.cancel(batch_id).status == "cancelling"
    for _ in range(4):
        request = worker.take()
        while not worker.cancelled(request.id):
            pass
        worker.finish(request.id, "cancelled")
    batch = wait(client, batch_id, "cancelled")
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 4)
    answered = results(client.files.content(batch.output_file_id).text)
    cancelled = results(client.files.content(batch.error_file_id).text)
    assert sorted([*answered, *cancelled]) == [f"l{number}" for number in range(5)]
    assert {(item["response"], item["error"]["code"]) for item in cancelled.values()} == {
        (None, "batch_cancelled")
    }
    assert client.batches.cancel(batch_id).status == "cancelled", "what has ended stays"


def test_cancelled_while_no_worker_is_alive(
    client: openai.OpenAI, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.clients.gateway.batches.runner._STOP_WITHIN", 0.2)
    batch_id = start(client, jsonl(line("a", "x")))
    silence(worker)
    client.batches.cancel(batch_id)
    batch = wait(client, batch_id, "cancelled")
    assert batch.output_file_id is None
    assert list(results(client.files.content(batch.error_file_id).text)) == ["a"]


def test_window_closes_while_no_worker_is_alive(
    redis_url: str, client: openai.OpenAI, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.clients.gateway.batches.runner._STOP_WITHIN", 0.2)
    lines = [line(f"l{number}", "x") for number in range(300)]
    batch_id = start(client, jsonl(*lines))
    first = worker.take()
    worker.emit(first.id, "x")
    worker.finish(first.id)
    while client.batches.retrieve(batch_id).request_counts.completed < 1:  # pyright: ignore
        pass
    silence(worker)
    close_window(redis_url, batch_id)
    batch = wait(client, batch_id, "expired", "completed")
    assert batch.status == "expired"
    assert batch.expired_at
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 299)
    expired = results(client.files.content(batch.error_file_id).text)
    assert {item["error"]["code"] for item in expired.values()} == {"batch_expired"}
    answered = results(client.files.content(batch.output_file_id).text)
    assert {*expired, *answered} == {item["custom_id"] for item in lines}
    client.files.delete(batch.output_file_id)
    counts = client.batches.retrieve(batch_id).request_counts
    assert counts is not None
    assert (counts.completed, counts.failed) == (1, 299)


def close_window(redis_url: str, batch_id: str) -> None:
    """As if the window had been a shorter one."""
    with redis.Redis.from_url(redis_url) as server:
        server.hset(GatewayKeys("headrace").batch(batch_id), "expires", server.time()[0])


def test_its_file_stays_until_it_ends(client: openai.OpenAI, worker: FakeWorker) -> None:
    file = client.files.create(file=("lines.jsonl", jsonl(line("a", "x"))), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    request = worker.take()
    with pytest.raises(openai.ConflictError, match="input of a running batch"):
        client.files.delete(file.id)
    worker.emit(request.id, "x")
    worker.finish(request.id)
    wait(client, batch.id, "completed")
    eventually_sync(lambda: deleted(client, file.id))


def deleted(client: openai.OpenAI, file_id: str) -> bool:
    try:
        return client.files.delete(file_id).deleted
    except openai.ConflictError:
        return False


def test_lost_upload(redis_url: str, client: openai.OpenAI, worker: FakeWorker) -> None:
    batch_id = start(client, jsonl(line("a", "x"), line("b", "x")))
    request = worker.take()
    with redis.Redis.from_url(redis_url) as server:
        upload = client.batches.retrieve(batch_id).input_file_id
        server.delete(GatewayKeys("headrace").lines(f"{{{upload}}}:lines"))
    other = worker.take()
    for taken in (request, other):
        worker.emit(taken.id, "x")
        worker.finish(taken.id)
    assert wait(client, batch_id, "completed").request_counts.completed == 2, "it had been read"
    with redis.Redis.from_url(redis_url) as server:
        file = client.files.create(file=("a.jsonl", jsonl(line("a", "x"), line("b", "x"))), purpose="batch")
        server.hdel(GatewayKeys("headrace").lines(f"{{{file.id}}}:lines"), "0", "1")
        server.hset(GatewayKeys("headrace").lines(f"{{{file.id}}}:lines"), "9", "x")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
    ended = wait(client, batch.id, "failed")
    assert ended.errors.data[0].code == "input_file_lost"
    assert (ended.request_counts.completed, ended.request_counts.failed) == (0, 2)


def test_of_another_tenant(redis_url: str, tmp_path: Path, model: FakeWorker) -> None:
    del model
    made = {tenant: make_key(tenant) for tenant in ("alice", "mallory")}
    keys = tmp_path / "keys.toml"
    keys.write_text("\n".join(table for _, table in made.values()))
    with (
        running_gateway(redis_url, keys_file=keys) as gateway,
        openai.OpenAI(base_url=gateway.v1, api_key=made["alice"][0]) as alice,
        httpx.Client(
            base_url=gateway.url, headers={"Authorization": f"Bearer {made['mallory'][0]}"}
        ) as mallory,
    ):
        batch_id = start(alice, jsonl(line("a", "secret")))
        batch = wait(alice, batch_id, "completed")
        file_id = batch.output_file_id
        assert mallory.get("/v1/files").json()["data"] == []
        assert mallory.get("/v1/batches").json()["data"] == []
        for some_file in (file_id, batch.input_file_id, "file-x", batch_id, "../x"):
            for method, suffix in [("GET", ""), ("GET", "/content"), ("DELETE", "")]:
                assert mallory.request(method, f"/v1/files/{some_file}{suffix}").status_code == 404
            stolen = {"input_file_id": some_file, "endpoint": "/v1/completions"}
            assert mallory.post("/v1/batches", json=stolen).status_code == 404
        for method, suffix in [("GET", ""), ("POST", "/cancel")]:
            answers = [
                mallory.request(method, f"/v1/batches/{some_id}{suffix}")
                for some_id in (batch_id, "batch_" + "0" * 64, "x")
            ]
            assert {answer.status_code for answer in answers} == {404}
            assert len({answer.text for answer in answers}) == 1
        assert len(results(alice.files.content(file_id or "").text)) == 1
