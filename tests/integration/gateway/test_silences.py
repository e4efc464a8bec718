"""Readers of streams in which nothing comes for a while."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import redis
from anyio import create_task_group, to_thread
from gateway_server import running_gateway
from httpx_sse import connect_sse
from openai_readers import READERS
from silent_model import TEXT, SilentModel, silent_model
from tiny_models import save_tiny_model
from waiting import eventually
from worker_processes import worker_processes

from headrace.clients import AsyncClient


@pytest.fixture
def model(redis_url: str) -> Iterator[SilentModel]:
    with silent_model(redis_url) as model:
        yield model


@pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class:UserWarning")
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_in_openais_format(model: SilentModel, reader: str) -> None:
    assert READERS[reader](f"{model.url}/v1", "m") == TEXT


@pytest.mark.parametrize("form", ["native", "chat", "completion"])
def test_a_reader_of_events(model: SilentModel, form: str) -> None:
    with httpx.Client(base_url=model.url, timeout=60) as http:
        request_id = http.post("/v1/requests", json={"model": "m", "prompt": "x"}).json()["id"]
        path = f"/v1/requests/{request_id}/events"
        with connect_sse(http, "GET", path, params={"format": form}) as source:
            data = [event.data for event in source.iter_sse()]
    if form != "native":
        assert data.pop() == "[DONE]"
    bodies = [json.loads(item) for item in data]
    assert len(bodies) >= 5
    if form == "native":
        assert "".join(body.get("text", "") for body in bodies) == TEXT


@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class:UserWarning")
async def test_a_worker_is_killed_while_all_read(redis_url: str, tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path / "model", chat_template=True)
    settings = {
        "redis": redis_url,
        "model": str(tmp_path / "model"),
        "served_name": "tiny",
        "device": "cpu",
        "lease": 2.0,
        "max_sequences": len(READERS),
    }
    texts: dict[str, str] = {}
    async with worker_processes("real", tmp_path) as workers, AsyncClient(redis_url, model="tiny") as client:
        with running_gateway(redis_url, heartbeat=0.1, default_max_tokens=60) as gateway:
            doomed = await workers.start(settings, step_seconds=0.05)
            await doomed.ready.wait()

            async def read(name: str) -> None:
                texts[name] = await to_thread.run_sync(READERS[name], gateway.v1, "tiny")

            async with create_task_group() as tasks:
                for name in READERS:
                    tasks.start_soon(read, name)
                with redis.Redis.from_url(redis_url) as server:
                    await eventually(lambda: len(server.keys("headrace:events:*")) == len(READERS), 120)
                    assert not texts
                    await doomed.kill()
                    ids = [
                        key.decode()[len("headrace:events:{") : -1]
                        for key in server.keys("headrace:events:*")
                    ]
                await workers.start(settings, step_seconds=0.0)
        results = [await client.attach(request_id).result() for request_id in ids]
        attempts = {(await client.attach(request_id).status()).attempts for request_id in ids}
    assert attempts == {2}
    assert sorted(texts.values()) == sorted(result.text for result in results)
    assert all(texts.values())
