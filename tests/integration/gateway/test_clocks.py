"""Moments are Redis's: a host or a client whose clock is hours away changes nothing."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
import redis
from fake_worker import FakeWorker
from gateway_process import gateway_process
from gateway_server import running_model

from headrace.clients.gateway.redis_keys import GatewayKeys

from .test_batches import jsonl, line, results, wait


@pytest.fixture(params=[2, -2], ids=["ahead", "behind"])
def url(request: pytest.FixtureRequest, redis_url: str, tmp_path: Path) -> Iterator[str]:
    """A gateway whose host's clock is two hours wrong."""
    options = ("--webhook-origin", "http://127.0.0.1:9")
    with gateway_process(redis_url, tmp_path / "gateway.log", *options, hours=request.param) as (_, url):
        yield url


def test_gateway_on_a_host_with_a_wrong_clock(
    url: str, redis_url: str, worker: FakeWorker, redis_client: redis.Redis
) -> None:
    before = redis_client.time()[0]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        file = client.files.create(file=("a.jsonl", jsonl(line("a", "x"))), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/completions",
            completion_window="1h",  # pyright: ignore[reportArgumentType]
        )
        request = worker.take()
        assert request.deadline == (batch.created_at + 3600) * 1000
        for _ in range(3):  # it looks every three seconds whether the window has closed
            time.sleep(1.5)
            assert client.batches.retrieve(batch.id).status == "in_progress"
        worker.emit(request.id, "x")
        worker.finish(request.id)
        ended = wait(client, batch.id, "completed", "expired")
        assert ended.status == "completed"
        answered = results(client.files.content(ended.output_file_id).text)["a"]["response"]["body"]
        files = [client.files.retrieve(file.id), client.files.retrieve(ended.output_file_id)]
        with running_model(redis_url):
            completion = client.completions.create(model="m", prompt="x")
            job = httpx.post(
                f"{url}/v1/requests", json={"model": "m", "prompt": "x", "webhook": "http://127.0.0.1:9/"}
            )
    assert job.status_code == 202
    told = httpx.get(f"{url}/v1/time").json()["now"]
    hook = redis_client.hget(GatewayKeys("headrace").tasks("webhooks"), job.json()["id"])
    assert hook is not None
    moments = [
        ended.created_at, ended.in_progress_at, ended.finalizing_at, ended.completed_at, answered["created"],
        completion.created, *(file.created_at for file in files),
        httpx.Response(200, content=hook).json()["created"], told / 1000,
    ]  # fmt: skip
    after = redis_client.time()[0]
    assert all(before <= moment <= after + 1 for moment in moments), (before, moments, after)
