"""Gateways that tests start, and a worker without a model behind them."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fake_worker import FakeWorker, serve
from waiting import eventually_sync

from headrace.clients.gateway.gateway import Gateway
from headrace.clients.gateway.operation.serve import GatewayServer, listen, make_server
from headrace.clients.gateway.settings import GatewaySettings
from headrace.clients.protocol import FinishReason, Request


@dataclass(frozen=True)
class RunningGateway:
    """A gateway that answers at ``url``."""

    url: str
    gateway: Gateway
    server: GatewayServer

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"


@contextmanager
def running_gateway(redis_url: str, *, host: str = "127.0.0.1", **settings: Any) -> Iterator[RunningGateway]:
    """A gateway in a thread with a loop of its own."""
    chosen = GatewaySettings(redis=redis_url, **{"heartbeat": 0.3, "drain_grace": 5.0, **settings})
    server = make_server(chosen)
    listener = listen(host, 0, chosen.write_timeout)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
    thread.start()
    eventually_sync(lambda: server.started or not thread.is_alive())
    assert server.started, "the gateway does not start"
    try:
        name = f"[{host}]" if ":" in host else host
        yield RunningGateway(f"http://{name}:{listener.getsockname()[1]}", server.gateway, server)
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the gateway does not stop"


def announce(worker: FakeWorker, name: str = "fake", **fields: Any) -> None:
    """A heartbeat, for as long as a test may take."""
    key = worker.keys.worker(worker.model, name)
    worker.redis.hset(key, mapping={"model": worker.model, "running": 0, "waiting": 0, **fields})
    worker.redis.expire(key, 600)


def silence(worker: FakeWorker, name: str = "fake") -> None:
    worker.redis.delete(worker.keys.worker(worker.model, name))


def text_of(request: Request) -> str:
    if request.messages is not None:
        return request.messages[-1].content or ""
    return request.prompt if request.prompt is not None else " ".join(map(str, request.tokens or []))


def answer(worker: FakeWorker, request: Request) -> None:
    """The prompt's words, one token each, up to ``max_tokens`` and to a stop string."""
    words = [word + " " for word in text_of(request).split()]
    reason: FinishReason = "length" if len(words) > request.max_tokens else "stop"
    for word in words[: request.max_tokens]:
        if any(stop in word for stop in request.stop):
            reason = "stop"
            break
        if worker.cancelled(request.id):
            reason = "cancelled"
            break
        logprobs = None
        if request.logprobs is not None:
            logprobs = [(-0.25, [(index, -0.25 - index) for index in range(request.logprobs)])]
        worker.emit(request.id, word, logprobs=logprobs)
    worker.finish(request.id, reason, metadata=request.metadata)


@contextmanager
def running_model(redis_url: str, model: str = "m") -> Iterator[FakeWorker]:
    """A worker that answers everything with ``answer``, one request after the other."""
    worker = FakeWorker(redis_url, model)
    announce(worker)
    stop = serve(worker, answer)
    try:
        yield worker
    finally:
        stop()
        worker.close()
