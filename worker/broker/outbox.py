"""Output on its way to Redis: one pipelined round trip per flush, merged while Redis is slow, bounded.

Nothing counts as delivered until Redis has said so, and every call may be repeated: a script compares the
request's token count with the event's. So a lost reply, a lost connection and a server that lost the end of a
log are one case: Redis says where the log ends, and the next flush goes on from there.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import anyio

from ...clients.protocol import LANES
from ..logs import about
from .connection import FAILURES, Backoff, Call, Connection, is_transient
from .entries import Held, Holdings
from .messages import Message, next_message, question, settlement
from .output import Output
from .parcels import parcels
from .results import Ending, NewTokens
from .settings import SERVICE_TTL, BrokerSettings, milliseconds

log = logging.getLogger(__name__)

OUTPUT_WEIGHT = 2
"""Service charged to a lane per output token, where an input token counts 1."""
_LONGEST_FLUSH = 4 << 20
"""Bytes of events in one round trip, approximately; the rest follows in the next."""


class Outbox:
    """Takes engine results from the serve loop; ``run`` delivers them.

    ``on_lost`` is told of claims that are over though the worker did not end them, ``on_cancel`` of those
    whose cancelling was asked for.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        connection: Connection,
        holdings: Holdings,
        consumer: str,
        *,
        on_lost: Callable[[Held], None],
        on_cancel: Callable[[Held], None],
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._counters = connection.counters
        self._holdings = holdings
        self._consumer = consumer
        self._on_lost = on_lost
        self._on_cancel = on_cancel
        # Dictionaries as ordered sets: what has waited longest goes first.
        self._unlogged: dict[Held, None] = {}
        self._asking: dict[Held, None] = {}
        self._settling: dict[Held, None] = {}
        self._service: Counter[int] = Counter()
        self._sending = False
        self._wake = anyio.Event()
        self._progress = anyio.Event()

    @property
    def full(self) -> bool:
        """The engine must not compute more until ``writable`` returns."""
        return self._counters.outbox_bytes >= self._settings.max_outbox_bytes

    async def writable(self) -> None:
        """Wait until the outbox is below its bound."""
        while self.full:
            await self._progress.wait()

    async def flushed(self) -> None:
        """Wait until Redis has confirmed everything put so far, and ended requests are off their queues."""
        while self._unlogged or self._settling or self._sending:
            await self._progress.wait()

    def put(self, deltas: Iterable[NewTokens], endings: Iterable[Ending]) -> None:
        """Take the results of one engine step; those of claims that the serve loop does not have are dropped.

        A claim whose delta does not continue what came before is given up, to be taken over after the lease:
        its log is right so far, and nobody else's request is at stake.
        """
        for new in deltas:
            held = self._holdings.of(new.sequence_id, new.epoch)
            if held is not None and held.running and held.output is not None and held.output.ending is None:
                before, known = held.output.unlogged_bytes, held.output.known
                try:
                    held.output.append(new)
                except ValueError as error:
                    about(log, held.request_id).error("claim given up after an inconsistent delta: %s", error)
                    self._lose(held)
                    continue
                self._service[held.entry.stream % LANES] += OUTPUT_WEIGHT * (held.output.known - known)
                self._changed(held, held.output.unlogged_bytes - before)
        for ending in endings:
            held = self._holdings.of(ending.sequence_id, ending.epoch)
            if held is not None and held.running:
                if ending.prompt_tokens:
                    self._service[held.entry.stream % LANES] += ending.prompt_tokens - held.entry.charge
                self.end(held, ending)

    def end(self, held: Held, ending: Ending) -> None:
        """End a claimed request, unless it has ended."""
        if held.output is not None and held.output.ending is None:
            before = held.output.unlogged_bytes
            held.output.ending = ending
            self._changed(held, held.output.unlogged_bytes - before)

    def settle(self, held: Held) -> None:
        """Take an entry off its queue: its request has ended, or there is none to be read."""
        held.ended = True
        self._settling[held] = None
        self._wake.set()

    def ask(self) -> None:
        """Find out how every claim stands: lost, to be cancelled, or with less of its log than it had."""
        for held in self._holdings.requests.values():
            if not (held.ended or held.leaving):
                self._asking[held] = None
        self._wake.set()

    def forget(self, held: Held) -> None:
        """Let go of an entry; what waits for it will not be delivered."""
        if held in self._unlogged and held.output is not None:
            self._counters.outbox_bytes -= held.output.unlogged_bytes
        for waiting in (self._unlogged, self._asking, self._settling):
            waiting.pop(held, None)
        self._holdings.forget(held)
        self._tell_progress()

    async def run(self) -> None:
        """Deliver until cancelled."""
        backoff = Backoff()
        failing = False
        while True:
            if not (self._unlogged or self._asking or self._settling or self._service):
                await self._wake.wait()
            self._wake = anyio.Event()
            try:
                failure = await self.flush()
            except FAILURES as error:
                failure = error
            self._report_progress()
            if failure is None:
                backoff.reset()
                failing = False
            else:
                self._connection.report("delivering output", failure, repeated=failing)
                failing = True
                await backoff.sleep()

    async def flush(self) -> BaseException | None:
        """One round trip; returns an error reply whose call is to be repeated, if there is one.

        Raises:
            redis.RedisError: the connection failed; everything is to be repeated.
        """
        messages = self._gather()
        self._sending = True
        try:
            answers = await self._send(messages)
        except FAILURES:
            self._doubt_ends()
            raise
        finally:
            self._sending = False
        failure = None
        for message, reply in answers:
            if isinstance(reply, Exception) and is_transient(reply):
                failure = reply
            elif isinstance(reply, Exception):
                about(log, message.held.request_id).error("write refused by Redis, claim given up: %s", reply)
                self._lose(message.held)
            elif message.kind == "settlement":
                self._settled(message.held, int(reply))
            else:
                self._answered(message, reply)
        if failure is not None:
            self._doubt_ends()
        return failure

    async def _send(self, messages: list[Message]) -> list[tuple[Message, Any]]:
        """Each message's reply, which may be an error."""
        answers: list[tuple[Message, Any]] = []
        refused: list[Message] = []
        sent = parcels(self._settings, self._consumer, messages)
        replies = await self._connection.batch([*(parcel.call for parcel in sent), *self._service_calls()])
        for parcel, reply in zip(sent, replies, strict=False):  # nobody waits for service to be counted
            if len(parcel.messages) > 1 and isinstance(reply, Exception) and not is_transient(reply):
                refused += parcel.messages
            else:
                answers += parcel.answers(reply)
        if refused:
            # One of them is why. Those before it in its parcel may be written already: they are repetitions.
            sent = parcels(self._settings, self._consumer, refused, alone=True)
            replies = await self._connection.batch([parcel.call for parcel in sent])
            for parcel, reply in zip(sent, replies, strict=True):
                answers += parcel.answers(reply)
        return answers

    def _settled(self, held: Held, answer: int) -> None:
        if answer >= 0:
            self._counters.dead_letters += bool(held.dead) and answer
            self.forget(held)
        elif held.output is not None and held.output.ending is not None:
            about(log, held.request_id).warning("Redis lost its done event; resending")
            self._counters.relogged += 1
            self._send_end_again(held)
        else:
            # Another worker's end is gone. The entry is a stray now, and will be claimed again.
            about(log, held.request_id).warning(
                "Redis lost the done event that another worker had written; it will be claimed again"
            )
            self.forget(held)

    def _doubt_ends(self) -> None:
        """In a cluster no script sees a request and its entry, so after a failure ends are sent once more.

        The node of the one may have come back without its last second, and not that of the other.
        """
        if self._settings.clustered:
            for held in list(self._settling):
                if held.output is not None and held.output.ending is not None:
                    self._send_end_again(held)

    def _send_end_again(self, held: Held) -> None:
        del self._settling[held]
        held.ended = False
        self._unlogged[held] = None

    def _gather(self) -> list[Message]:
        messages: list[Message] = []
        size = 0
        for held in list(self._unlogged):
            output = held.output
            message = (
                next_message(self._settings, self._consumer, held, output) if output is not None else None
            )
            if message is None:
                del self._unlogged[held]
                continue
            messages.append(message)
            size += message.size
            if size > _LONGEST_FLUSH:
                break
        answered_anyway = {message.held for message in messages}
        messages += [
            question(held, held.output)
            for held in self._asking
            if held.output is not None and held not in answered_anyway
        ]
        return messages + [settlement(self._settings, held) for held in self._settling]

    def _service_calls(self) -> list[Call]:
        service, self._service = self._service, Counter()
        key = self._settings.keys.service(self._settings.model)
        calls: list[Call] = [("HINCRBY", key, lane, tokens) for lane, tokens in service.items() if tokens]
        return [*calls, ("PEXPIRE", key, milliseconds(SERVICE_TTL))] if calls else []

    def _answered(self, message: Message, reply: list[bytes]) -> None:
        held = message.held
        self._asking.pop(held, None)
        let_go = held.leaving or self._holdings.requests.get(held.request_id or "") is not held
        if held.output is None or let_go:
            return  # let go while the call was under way
        if reply[0] == b"lost":
            _explain_loss(held, status=reply[1].decode(), epoch=reply[2].decode())
            held.superseded = True
            self._lose(held)
        elif message.kind == "end":
            if held.output.ending is not None:
                self._counters.finished[held.output.ending.reason] += 1
            self._unlogged.pop(held, None)
            self.settle(held)
        elif self._confirm(message, held.output, int(reply[1])) and reply[2]:
            self._on_cancel(held)

    def _confirm(self, message: Message, output: Output, logged: int) -> bool:
        held = message.held
        if not output.confirm(logged):
            log.error(
                "request %s: its log has %d tokens, which this worker never wrote; dropped",
                held.request_id,
                logged,
            )
            self._lose(held)
            return False
        if logged < message.seq:
            log.warning(
                "request %s: Redis has lost its tokens from %d to %d; sending them again",
                held.request_id,
                logged,
                message.seq,
            )
            self._counters.relogged += 1
        elif message.count:
            self._counters.tokens_logged += logged - message.seq
            self._counters.bytes_logged += message.size
        if output.known > logged or output.ending is not None:
            self._unlogged[held] = None
        else:
            self._unlogged.pop(held, None)
        return True

    def _lose(self, held: Held) -> None:
        self._counters.lost_claims += 1
        self.forget(held)
        self._on_lost(held)

    def _changed(self, held: Held, added: int) -> None:
        self._unlogged[held] = None
        self._counters.outbox_bytes += added
        self._wake.set()

    def _report_progress(self) -> None:
        waiting = (held.output.unlogged_bytes for held in self._unlogged if held.output is not None)
        self._counters.outbox_bytes = sum(waiting)
        self._tell_progress()

    def _tell_progress(self) -> None:
        self._progress.set()
        self._progress = anyio.Event()


def _explain_loss(held: Held, *, status: str, epoch: str) -> None:
    if not status:
        about(log, held.request_id).error("state lost from Redis; sequence dropped")
    elif status == "running":
        about(log, held.request_id).warning(
            "lease lost to another worker, epoch %s > %d; sequence dropped", epoch, held.epoch
        )
    else:
        about(log, held.request_id).warning("already %s by another worker; sequence dropped", status)
