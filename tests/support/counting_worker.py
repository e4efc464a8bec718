"""The worker's serve loop over an engine that counts: output token ``n`` of any request is ``n``."""

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import msgpack
import redis
from prometheus_client import CollectorRegistry

from headrace.clients.protocol import (
    GROUP,
    Done,
    Event,
    FinishReason,
    Keys,
    decode_event,
    encode_request,
    make_request,
)
from headrace.worker.broker import Broker, BrokerSettings, Claim
from headrace.worker.engine.engine import Engine, EngineStatus
from headrace.worker.engine.sequence import SamplingParams, Sequence
from headrace.worker.engine.step import Delta, Finished, Step
from headrace.worker.inbox import Inbox
from headrace.worker.preparation import Preparation
from headrace.worker.serve import ServeLoop
from headrace.worker.telemetry import Telemetry

MODEL = "m"
KEYS = Keys()


def word(position: int) -> str:
    """The text of output token ``position``; of varying length, sometimes empty, not only ASCII."""
    return ("", " w", "é", " 🙂x")[position % 4]


def text_of(count: int) -> str:
    return "".join(word(position) for position in range(count))


def settings(url: str, name: str = "w", **more: Any) -> BrokerSettings:
    return BrokerSettings(**({"url": url, "model": MODEL, "name": name, "lease": 0.6} | more))


def enqueue(
    client: redis.Redis, request_id: str, *, priority: str = "normal", lane: int = 0, **fields: Any
) -> bytes:
    """A bare XADD, as from any language; returns the entry id."""
    defaults = {"id": request_id, "model": MODEL, "prompt": "p", "max_tokens": 8}
    body = encode_request(make_request(**(defaults | fields)))
    entry = client.xadd(f"headrace:queue:{{{MODEL}}}:{priority}:{lane}", {"r": body})
    assert isinstance(entry, bytes)
    return entry


def log_of(client: redis.Redis, request_id: str) -> list[Event]:
    entries: Any = client.xrange(KEYS.events(request_id))
    events = [decode_event(fields[b"e"]) for _, fields in entries]
    return [event for event in events if event is not None]


def state_of(client: redis.Redis, request_id: str) -> dict[str, str]:
    state: Any = client.hgetall(KEYS.request(request_id))
    return {name.decode(): value.decode() for name, value in state.items()}


def done_of(client: redis.Redis, request_id: str) -> Done | None:
    """The request's end; asserts that it is the last event and the only end."""
    events = log_of(client, request_id)
    ends = [event for event in events if isinstance(event, Done)]
    assert len(ends) <= 1
    if not ends:
        return None
    assert events[-1] is ends[0]
    return ends[0]


def assert_served(client: redis.Redis, request_id: str, count: int) -> None:
    """The request ended by itself after exactly the tokens 0 to ``count``, in a log of two events."""
    events = log_of(client, request_id)
    assert [type(event).__name__ for event in events] == ["Delta", "Done"]
    delta, done = events
    assert not isinstance(delta, Done)
    assert isinstance(done, Done)
    assert delta.tokens == list(range(count))
    assert delta.text == text_of(count)
    assert (done.seq, done.finish_reason, done.usage.completion_tokens) == (count, "length", count)


def queue_is_empty(client: redis.Redis) -> bool:
    """Nothing waits, nothing is owned by anyone."""
    for name in KEYS.queues(MODEL):
        if client.xlen(name):
            return False
        if client.exists(name) and client.xpending(name, "workers")["pending"]:
            return False
    return True


def silence(client: redis.Redis, consumer: str) -> None:
    """The leases of what the consumer owns of the queue normal, lane 0, have ended long ago."""
    queue = KEYS.queue(MODEL, "normal", 0)
    ids = [item["message_id"] for item in client.xpending_range(queue, GROUP, "-", "+", 1000, consumer)]
    client.xclaim(queue, GROUP, consumer, 0, ids, idle=3_600_000, justid=True)


@dataclass
class _Running:
    sequence: Sequence
    tokens: list[int]
    text: str


@dataclass
class CountingEngine:
    """Makes one token for each sequence a step; ``pause_at`` keeps sequences at so many tokens.

    ``epoch_weight`` times the claim's epoch is added to each token, which tells who made it.
    """

    capacity: int = 8
    pause_at: int | None = None
    epoch_weight: int = 0
    step_seconds: float = 0.002
    running: dict[str, _Running] = field(default_factory=dict)
    finished: list[Finished] = field(default_factory=list)
    first_tokens: dict[str, int] = field(default_factory=dict)
    """Where each request's last run started."""
    most_running: int = 0

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.finished)

    @property
    def status(self) -> EngineStatus:
        return EngineStatus(len(self.running), 0, 0, 0, 0, 0)

    @property
    def waiting(self) -> list[Sequence]:
        return []  # whatever is added runs at once

    def credits(self, now: int) -> tuple[int, int, int]:  # noqa: ARG002 - as of the engine
        free = max(0, self.capacity - len(self.running))
        return free, free, free

    def fits(self, num_tokens: int, now: int) -> bool:  # noqa: ARG002 - as of the engine
        return len(self.running) < self.capacity

    def add(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            tokens = list(sequence.output)
            self.running[sequence.id] = _Running(sequence, tokens, text_of(len(tokens)))
            self.first_tokens[sequence.id] = len(tokens)
        self.most_running = max(self.most_running, len(self.running))

    def cancel(self, reasons: Mapping[str, FinishReason]) -> None:
        for request_id, reason in reasons.items():
            self.end(request_id, reason)

    def end(self, request_id: str, reason: FinishReason) -> None:
        if one := self.running.pop(request_id, None):
            epoch = one.sequence.epoch
            self.finished.append(Finished(request_id, epoch, reason, one.tokens, one.text, None, 1, 0))

    def drop(self, claims: Mapping[str, int]) -> None:
        for request_id, epoch in claims.items():
            one = self.running.get(request_id)
            if one is not None and one.sequence.epoch == epoch:
                del self.running[request_id]

    def step(self) -> Step:
        time.sleep(self.step_seconds)
        deltas: list[Delta] = []
        for request_id, one in list(self.running.items()):
            if self.pause_at is not None and len(one.tokens) >= self.pause_at:
                continue
            sequence, position = one.sequence, len(one.tokens)
            piece = word(position)
            token = position + self.epoch_weight * sequence.epoch
            deltas.append(Delta(request_id, sequence.epoch, position, len(one.text), [token], piece))
            one.tokens.append(token)
            one.text += piece
            if len(one.tokens) >= sequence.sampling.max_tokens:
                self.end(request_id, "length")
        finished, self.finished = self.finished, []
        return Step(deltas=deltas, finished=finished)


@dataclass
class _CountingPreparation:
    """Makes sequences without a tokenizer, and takes note of the claims."""

    seen: list[Claim] = field(default_factory=list)

    def sequence(self, claim: Claim) -> Sequence:
        self.seen.append(claim)
        sampling = SamplingParams(max_tokens=claim.request.max_tokens)
        output = list(claim.resumed.tokens) if claim.resumed else []
        return Sequence(
            id=claim.request.id,
            prompt=[0],
            sampling=sampling,
            priority=claim.priority,
            arrival=claim.arrival_ms,
            epoch=claim.epoch,
            output=output,
        )


class CountingWorker:
    """The worker's own serve loop between a broker and an engine that counts.

    ``serve`` runs everything until cancelled: a worker's whole life. Or a test calls ``receive`` and ``step``
    by hand, beside the broker.
    """

    def __init__(self, broker: Broker, engine: CountingEngine | None = None) -> None:
        self.broker = broker
        self.engine = engine or CountingEngine()
        preparation = _CountingPreparation()
        self.seen = preparation.seen
        telemetry = Telemetry(
            CollectorRegistry(), MODEL, "test", lambda: self.engine.status, broker.counters, list
        )
        self._inbox = Inbox(broker, cast(Preparation, preparation), telemetry)
        self._loop = ServeLoop(cast(Engine, self.engine), broker, self._inbox, telemetry, grace=0.0)

    @property
    def most_running(self) -> int:
        return self.engine.most_running

    async def serve(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.broker.run)
            tasks.start_soon(self._inbox.run)
            tasks.start_soon(self._loop.run)

    async def receive(self) -> None:
        """One claim from the broker; it joins the batch at the next step."""
        await self._inbox.receive()

    def join_batch(self) -> None:
        """The iteration boundary of the serve loop."""
        self._loop.join_batch()

    async def step(self) -> None:
        """One iteration of the serve loop, if there is anything to compute."""
        self.join_batch()
        if self.engine.has_work:
            with ThreadPoolExecutor(1) as thread:
                await self._loop.iterate(thread)


async def until(condition: Any, *, within: float = 20.0) -> None:
    """Wait for a condition, long enough for a slow machine."""
    with anyio.fail_after(within):
        while True:
            if condition():
                return
            await anyio.sleep(0.005)


def notice(**fields: Any) -> bytes:
    packed = msgpack.packb(fields)
    assert isinstance(packed, bytes)
    return packed
