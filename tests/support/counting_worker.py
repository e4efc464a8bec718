"""A broker with a serve loop over an engine that counts: output token ``n`` of any request is ``n``."""

from dataclasses import dataclass, field
from typing import Any

import anyio
import msgpack
import redis

from headrace.clients.protocol import (
    Done,
    Event,
    FinishReason,
    Keys,
    decode_event,
    encode_request,
    make_request,
)
from headrace.worker.broker import Broker, BrokerSettings, Claim
from headrace.worker.engine.step import Delta, Finished

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


@dataclass
class _Running:
    claim: Claim
    tokens: list[int]
    text: str


@dataclass
class CountingEngine:
    """Makes one token for each sequence a step; ``pause_at`` keeps sequences at so many tokens.

    ``epoch_weight`` times the claim's epoch is added to each token, which tells who made it.
    """

    room: int = 8
    pause_at: int | None = None
    epoch_weight: int = 0
    running: dict[str, _Running] = field(default_factory=dict)
    ends: list[Finished] = field(default_factory=list)
    first_tokens: dict[str, int] = field(default_factory=dict)
    """Where each request's last run started."""

    def add(self, claim: Claim) -> None:
        resumed = claim.resumed
        tokens = list(resumed.tokens) if resumed else []
        self.running[claim.request.id] = _Running(claim, tokens, resumed.text if resumed else "")
        self.first_tokens[claim.request.id] = len(tokens)

    def end(self, request_id: str, reason: FinishReason) -> None:
        if one := self.running.pop(request_id, None):
            claim = one.claim
            ending = Finished(claim.request.id, claim.epoch, reason, one.tokens, one.text, None, 1, 0)
            self.ends.append(ending)

    def drop(self, request_id: str, epoch: int) -> None:
        one = self.running.get(request_id)
        if one is not None and one.claim.epoch == epoch:
            del self.running[request_id]

    def step(self) -> tuple[list[Delta], list[Finished]]:
        deltas: list[Delta] = []
        for request_id, one in list(self.running.items()):
            if self.pause_at is not None and len(one.tokens) >= self.pause_at:
                continue
            claim, position = one.claim, len(one.tokens)
            piece = word(position)
            token = position + self.epoch_weight * claim.epoch
            deltas.append(Delta(request_id, claim.epoch, position, len(one.text), [token], piece))
            one.tokens.append(token)
            one.text += piece
            if len(one.tokens) >= claim.request.max_tokens:
                self.end(request_id, "length")
        ends, self.ends = self.ends, []
        return deltas, ends


class CountingWorker:
    """The serve loop over a broker. ``serve`` runs everything until cancelled: a worker's whole life."""

    def __init__(self, broker: Broker, engine: CountingEngine | None = None) -> None:
        self.broker = broker
        self.engine = engine or CountingEngine()
        self.seen: list[Claim] = []
        self.most_running = 0
        self.turns = 0

    async def serve(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.broker.run)
            tasks.start_soon(self._receive)
            tasks.start_soon(self._loop)

    def step(self) -> None:
        """One turn of the serve loop."""
        engine, broker = self.engine, self.broker
        self.turns += 1
        interrupts = broker.control.take()
        for request_id, epoch in interrupts.drop.items():
            engine.drop(request_id, epoch)
        for request_id, reason in interrupts.end.items():
            engine.end(request_id, reason)
        self.most_running = max(self.most_running, len(engine.running))
        if not broker.outbox.full:
            broker.outbox.put(*engine.step())
        free = max(0, engine.room - len(engine.running))
        broker.intake.offer((free, free, free))

    def receive(self, claim: Claim) -> None:
        self.seen.append(claim)
        self.engine.add(claim)

    async def _receive(self) -> None:
        while True:
            self.receive(await self.broker.intake.next_claim())

    async def _loop(self) -> None:
        while True:
            self.step()
            await anyio.sleep(0.002)


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
