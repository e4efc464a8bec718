"""The delivery protocol explored: two workers, one request, any order of pauses, crashes and lost replies.

Hypothesis chooses what happens next; the real scripts on a real server decide what comes of it. Nothing runs
in the background, so each rule is one step of one worker.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import anyio.from_thread
import pytest
import redis
from counting_worker import KEYS, MODEL, enqueue, queue_is_empty, state_of, text_of
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
EPOCH_WEIGHT = 1000
"""A token says its position and the epoch of the claim that made it."""
WORKERS = st.sampled_from((0, 1))
FAULTS = st.sampled_from((None, None, None, "request lost", "reply lost"))
HAPPENINGS = (
    *("turn", "takeover", "takeover", "pull", "claim", "compute", "compute", "flush", "flush", "renew"),
    *("leases end", "crash", "hand back", "scripts forgotten", "cancel", "stranger trims"),
)


class DeliveryProtocol(RuleBasedStateMachine):
    server: RedisServer
    portal: anyio.from_thread.BlockingPortal

    @initialize(tokens=st.integers(-1, 3))
    def start(self, tokens: int) -> None:
        """With the request under way at the first worker, unless ``tokens`` is negative."""
        self.client = self.server.connect()
        self.client.flushall()
        self.channel = self.client.pubsub(ignore_subscribe_messages=True)
        self.channel.subscribe(KEYS.channel("a"))
        self.channel.get_message(timeout=20)
        self.subscriber = Transcript()
        self.received: list[int] = []
        self.logged: list[int] = []
        self.text = ""
        self.ends: list[Done] = []
        self.cancelled = False
        self.trimmed = False
        enqueue(self.client, "a", max_tokens=LENGTH)
        self.workers = [self.portal.call(_born, self.server.url, name) for name in ("w0", "w1")]
        if tokens >= 0:
            self.turn(0, tokens, None)

    # One rule, not one for each thing that can happen: Hypothesis leaves whole rules out of an example, and
    # here everything is needed for anything interesting to happen.
    @rule(what=st.sampled_from(HAPPENINGS), worker=WORKERS, fault=FAULTS, tokens=st.integers(1, 3))
    def happens(self, what: str, worker: int, fault: str | None, tokens: int) -> None:
        life = self.workers[worker]
        match what:
            case "turn":
                self.turn(worker, tokens, fault)
            case "takeover":
                self.leases_end()
                self.turn(worker, tokens, fault)
            case "pull":
                self._call(life.pull, fault)
            case "claim":
                self._call(life.claim, fault)
            case "compute":
                for each in self.workers * tokens:
                    self._call(each.compute)
            case "flush":
                self._call(life.flush, fault)
            case "renew":
                self._call(life.renew, fault)
            case "leases end":
                self.leases_end()
            case "crash" | "hand back":
                if what == "hand back":
                    self._call(life.broker.hand_back)
                self.portal.call(life.connection.aclose)
                self.workers[worker] = self.portal.call(_born, self.server.url, f"w{worker}")
            case "scripts forgotten":
                self.client.script_flush()
            case "stranger trims":
                self.trimmed = True
                self.client.xtrim(KEYS.queue(MODEL, "normal", 0), maxlen=0, approximate=False)
            case _:
                if len(self.logged) > 1 and not self.ends:
                    self.cancelled = True
                    self.client.hset(KEYS.request("a"), "cancel", 1)

    def turn(self, worker: int, tokens: int, fault: str | None) -> None:
        """All that a worker does between two heartbeats; a fault hits its last flush."""
        life = self.workers[worker]
        for step in (life.pull, life.claim, life.flush):
            self._call(step, None)
        for number in range(tokens):
            self._call(life.compute)
            self._call(life.flush, fault if number == tokens - 1 else None)

    def leases_end(self) -> None:
        queue = KEYS.queue(MODEL, "normal", 0)
        if self.client.xinfo_groups(queue):
            for item in self.client.xpending_range(queue, "workers", "-", "+", 10):
                owner, ids = item["consumer"], [item["message_id"]]
                self.client.xclaim(queue, "workers", owner, 0, ids, idle=2 * LEASE_MS, justid=True)

    @invariant()
    def the_promise_holds(self) -> None:
        self.tokens_are_logged_once_and_in_order()
        self.the_subscriber_misses_and_repeats_nothing()
        # The entry leaves the queue only after the end, but for strangers.
        if not self.trimmed and not self.client.xlen(KEYS.queue(MODEL, "normal", 0)):
            assert state_of(self.client, "a")["status"] == "finished"

    def tokens_are_logged_once_and_in_order(self) -> None:
        tokens: list[int] = []
        text = ""
        for _, fields in self.client.xrange(KEYS.events("a")):
            event = decode_event(fields[b"e"])
            if isinstance(event, Delta):
                assert (event.seq, event.pos) == (len(tokens), len(text))
                tokens += event.tokens
                text += event.text
        assert text == text_of(len(tokens))
        assert [token % EPOCH_WEIGHT for token in tokens] == list(range(len(tokens)))
        epochs = [token // EPOCH_WEIGHT for token in tokens]
        assert epochs == sorted(epochs)
        # What was logged once stays, and only the claim of this moment adds to it.
        assert tokens[: len(self.logged)] == self.logged
        state = state_of(self.client, "a")
        assert set(epochs[len(self.logged) :]) <= {int(state.get("epoch", 0))}
        assert int(state.get("seq", 0)) == len(tokens)
        self.logged = tokens

    def the_subscriber_misses_and_repeats_nothing(self) -> None:
        while (message := self.channel.get_message(timeout=0)) is not None:
            event = decode_event(message["data"])
            assert event is not None
            if isinstance(event, Done):
                self.ends.append(event)
            assert not self.subscriber.done
            piece = self.subscriber.take(event)
            if isinstance(piece, Delta):
                self.received += piece.tokens
                self.text += piece.text
        assert self.received == self.logged
        assert self.text == text_of(len(self.received))
        assert len(self.ends) <= 1

    def teardown(self) -> None:
        try:
            self.leases_end()
            if self.trimmed:  # and then the client submits it again
                enqueue(self.client, "a", max_tokens=LENGTH)
            healthy = self.portal.call(_born, self.server.url, "healthy")
            for _ in range(100):
                if queue_is_empty(self.client):
                    break
                self._call(healthy.pull, None)
                self._call(healthy.claim, None)
                self._call(healthy.compute)
                self._call(healthy.flush, None)
                self.the_promise_holds()
                self.leases_end()
            assert queue_is_empty(self.client)
            (end,) = self.ends
            assert end.finish_reason == "length" or (self.cancelled and end.finish_reason == "cancelled")
            assert end.seq == len(self.received)
            assert end.finish_reason == "cancelled" or end.seq == LENGTH
            for life in (*self.workers, healthy):
                self.portal.call(life.connection.aclose)
        finally:
            self.channel.close()
            self.client.close()

    def _call(self, step: Any, *arguments: Any) -> None:
        with suppress(redis.ConnectionError):
            self.portal.call(step, *arguments)


async def _born(url: str, name: str) -> SteppedWorker:
    worker = SteppedWorker(url, name, epoch_weight=EPOCH_WEIGHT)
    await worker.renew()
    return worker


@pytest.fixture
def portal() -> Iterator[anyio.from_thread.BlockingPortal]:
    with anyio.from_thread.start_blocking_portal() as portal:
        yield portal


def test_every_request_ends_once_and_every_token_arrives_once(
    redis_server: RedisServer, portal: anyio.from_thread.BlockingPortal
) -> None:
    machine = type("Machine", (DeliveryProtocol,), {"server": redis_server, "portal": portal})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
