"""The delivery protocol on a server that loses power: it comes back as it was some calls ago, time and again.

Two workers and one request, as in ``test_protocol_model.py``, and a subscriber that reads the log where the
channel leaves a gap. Tokens are those of their positions, whoever makes them, as with a deterministic model.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import anyio.from_thread
import pytest
import redis
from counting_worker import KEYS, MODEL, enqueue, log_of, queue_is_empty, state_of, text_of
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from redis_servers import RedisServer
from stepped_worker import LEASE_MS, SteppedWorker

from headrace.clients.protocol import Delta, Done, decode_event
from headrace.clients.transcript import Transcript

LENGTH = 9
QUEUE = KEYS.queue(MODEL, "normal", 0)
LOSSES = 12
"""Calls back to which the server may fall."""

WORKERS = st.sampled_from((0, 1))
FAULTS = st.sampled_from((None, None, None, "request lost", "reply lost"))
HAPPENINGS = (
    *("turn", "takeover", "pull", "claim", "compute", "flush", "flush", "renew", "leases end"),
    *("power lost", "power lost", "power lost", "crash", "hand back", "cancel", "submit"),
)


class PowerLosses(RuleBasedStateMachine):
    server: RedisServer
    portal: anyio.from_thread.BlockingPortal

    @initialize(tokens=st.integers(0, 3))
    def start(self, tokens: int) -> None:
        self.client = self.server.connect()
        self.client.flushall()
        self.channel = self.client.pubsub(ignore_subscribe_messages=True)
        self.channel.subscribe(KEYS.channel("a"))
        self.channel.get_message(timeout=20)
        self.subscriber = Transcript()
        self.received: list[int] = []
        self.text = ""
        self.cancelled = False
        self.workers: list[SteppedWorker] = []
        self.history: list[dict[bytes, tuple[bytes, int]]] = []
        self.remember()
        self.submit()
        self.workers = [self.portal.call(self.born, name) for name in ("w0", "w1")]
        self.turn(0, tokens, None)

    # One rule: see ``test_protocol_model.py``.
    @rule(
        what=st.sampled_from(HAPPENINGS),
        worker=WORKERS,
        fault=FAULTS,
        tokens=st.integers(1, 3),
        lost=st.integers(1, LOSSES),
    )
    def happens(self, what: str, worker: int, fault: str | None, tokens: int, lost: int) -> None:
        one = self.workers[worker]
        match what:
            case "turn":
                self.turn(worker, tokens, fault)
            case "takeover":
                self.leases_end()
                self.turn(worker, tokens, fault)
            case "pull":
                self.call(one.pull, fault)
            case "claim":
                self.call(one.claim, fault)
            case "compute":
                for each in self.workers * tokens:
                    self.call(each.compute)
            case "flush":
                self.call(one.flush, fault)
            case "renew":
                self.call(one.renew, fault)
            case "leases end":
                self.leases_end()
            case "power lost":
                self.lose(lost)
            case "crash" | "hand back":
                if what == "hand back":
                    self.call(one.broker.hand_back)
                self.portal.call(one.connection.aclose)
                self.workers[worker] = self.portal.call(self.born, f"w{worker}")
            case "submit":
                self.submit()
            case _:
                if self.received and self.client.hget(KEYS.request("a"), "status") == b"running":
                    self.cancelled = True
                    self.client.hset(KEYS.request("a"), "cancel", 1)
                    self.remember()

    def submit(self) -> None:
        """By a subscriber that finds the request unknown, and says it again."""
        if not self.client.exists(KEYS.request("a")) and not self.client.xlen(QUEUE):
            enqueue(self.client, "a", max_tokens=LENGTH)
            self.remember()

    def turn(self, worker: int, tokens: int, fault: str | None) -> None:
        one = self.workers[worker]
        for step in (one.pull, one.claim, one.flush):
            self.call(step)
        for number in range(tokens):
            self.call(one.compute)
            self.call(one.flush, fault if number == tokens - 1 else None)

    def remember(self) -> None:
        """Called after each call that the server executes."""
        keys: Any = self.client.keys("*")
        with self.client.pipeline() as pipeline:
            for key in keys:
                pipeline.dump(key)
                pipeline.pttl(key)
            found = pipeline.execute()
        self.history.append(dict(zip(keys, zip(found[::2], found[1::2], strict=True), strict=True)))
        del self.history[: -LOSSES - 1]

    def lose(self, calls: int) -> None:
        """The server's data are those of so many calls ago; whoever waits and what was published are not."""
        del self.history[max(1, len(self.history) - calls) :]
        with self.client.pipeline() as pipeline:
            pipeline.flushall()
            for key, (value, ttl) in self.history[-1].items():
                pipeline.restore(key, max(0, ttl), value)
            pipeline.execute()

    def leases_end(self) -> None:
        with suppress(redis.ResponseError):  # no group yet
            for item in self.client.xpending_range(QUEUE, "workers", "-", "+", 10):
                owner, ids = item["consumer"], [item["message_id"]]
                self.client.xclaim(QUEUE, "workers", owner, 0, ids, idle=2 * LEASE_MS, justid=True)
            self.remember()

    @invariant()
    def somebody_can_go_on(self) -> None:
        """A request is on its queue, has ended, or is unknown and so submitted again."""
        if not self.client.xlen(QUEUE):
            assert state_of(self.client, "a").get("status", "finished") == "finished"

    @invariant()
    def the_log_is_one_piece(self) -> None:
        tokens: list[int] = []
        text = ""
        for event in log_of(self.client, "a"):
            if isinstance(event, Delta):
                assert (event.seq, event.pos) == (len(tokens), len(text))
                tokens += event.tokens
                text += event.text
            else:
                assert event.seq == len(tokens)
        assert tokens == list(range(len(tokens)))
        assert text == text_of(len(tokens))
        assert int(state_of(self.client, "a").get("seq", 0)) == len(tokens)

    @invariant()
    def the_subscriber_misses_and_repeats_nothing(self) -> None:
        while (message := self.channel.get_message(timeout=0)) is not None:
            event = decode_event(message["data"])
            assert event is not None
            if self.subscriber.lacks_before(event):
                for logged in log_of(self.client, "a"):
                    self.receive(logged)
            else:
                self.receive(event)
        assert self.received == list(range(len(self.received)))
        assert self.text == text_of(len(self.received))

    def receive(self, event: Delta | Done) -> None:
        if not self.subscriber.lacks_before(event) and isinstance(
            piece := self.subscriber.take(event), Delta
        ):
            self.received += piece.tokens
            self.text += piece.text

    def teardown(self) -> None:
        try:
            healthy = self.portal.call(self.born, "healthy")
            self.submit()
            for _ in range(100):
                if queue_is_empty(self.client):
                    break
                self.leases_end()
                for step in (healthy.pull, healthy.claim, healthy.compute, healthy.flush):
                    self.call(step)
            assert queue_is_empty(self.client)
            self.the_log_is_one_piece()
            self.the_subscriber_misses_and_repeats_nothing()
            state, log = state_of(self.client, "a"), log_of(self.client, "a")
            assert state["status"] == "finished"
            assert [type(event) for event in log] in ([Delta, Done], [Done])
            end = log[-1]
            assert isinstance(end, Done)
            if end.finish_reason == "cancelled":
                assert self.cancelled
            else:
                assert (end.finish_reason, end.seq) == ("length", LENGTH)
            for event in log:
                self.receive(event)
            assert self.subscriber.done
            assert len(self.received) == LENGTH or self.cancelled
            for one in (*self.workers, healthy):
                self.portal.call(one.connection.aclose)
        finally:
            self.channel.close()
            self.client.close()

    def call(self, step: Any, *arguments: Any) -> None:
        with suppress(redis.ConnectionError):
            self.portal.call(step, *arguments)

    async def born(self, name: str) -> SteppedWorker:
        worker = SteppedWorker(self.server.url, name)
        await worker.renew()
        worker.connection.executed = self.remember
        return worker


@pytest.fixture
def portal() -> Iterator[anyio.from_thread.BlockingPortal]:
    with anyio.from_thread.start_blocking_portal() as portal:
        yield portal


def test_whatever_is_lost_a_request_ends_whole(
    redis_server: RedisServer, portal: anyio.from_thread.BlockingPortal
) -> None:
    machine = type("Machine", (PowerLosses,), {"server": redis_server, "portal": portal})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=30,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
