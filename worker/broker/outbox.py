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
from .entries import OwnedEntries, OwnedEntry
from .messages import Message, ack, next_message, probe
from .output import Output
from .results import NewTokens, Result
from .script_batch import script_batches
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
        owned_entries: OwnedEntries,
        consumer: str,
        *,
        on_lost: Callable[[OwnedEntry], None],
        on_cancel: Callable[[OwnedEntry], None],
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._counters = connection.counters
        self._owned = owned_entries
        self._consumer = consumer
        self._on_lost = on_lost
        self._on_cancel = on_cancel
        # Dictionaries as ordered sets: what has waited longest goes first.
        self._unlogged: dict[OwnedEntry, None] = {}
        self._probing: dict[OwnedEntry, None] = {}
        self._acking: dict[OwnedEntry, None] = {}
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
        while self._unlogged or self._acking or self._sending:
            await self._progress.wait()

    def put(self, deltas: Iterable[NewTokens], endings: Iterable[Result]) -> None:
        """Take the results of one engine step; those of claims that the serve loop does not have are dropped.

        A claim whose delta does not continue what came before is given up, to be taken over after the lease:
        its log is right so far, and other requests are not affected.
        """
        for new in deltas:
            owned = self._owned.of(new.sequence_id, new.epoch)
            if (
                owned is not None
                and owned.running
                and owned.output is not None
                and owned.output.ending is None
            ):
                before, known = owned.output.unlogged_bytes, owned.output.known
                try:
                    owned.output.append(new)
                except ValueError as error:
                    about(log, owned.request_id).error(
                        "claim given up after an inconsistent delta: %s", error
                    )
                    self._lose(owned)
                    continue
                self._service[owned.entry.stream % LANES] += OUTPUT_WEIGHT * (owned.output.known - known)
                self._changed(owned, owned.output.unlogged_bytes - before)
        for ending in endings:
            owned = self._owned.of(ending.sequence_id, ending.epoch)
            if owned is not None and owned.running:
                if ending.prompt_tokens:
                    self._service[owned.entry.stream % LANES] += ending.prompt_tokens - owned.entry.charge
                self.end(owned, ending)

    def end(self, owned: OwnedEntry, ending: Result) -> None:
        """End a claimed request, unless it has ended."""
        if owned.output is not None and owned.output.ending is None:
            before = owned.output.unlogged_bytes
            owned.output.ending = ending
            self._changed(owned, owned.output.unlogged_bytes - before)

    def ack(self, owned: OwnedEntry) -> None:
        """Take an entry off its queue: its request has ended, or there is none to be read."""
        owned.ended = True
        self._acking[owned] = None
        self._wake.set()

    def probe(self) -> None:
        """Find out how every claim stands: lost, to be cancelled, or with less of its log than it had."""
        for owned in self._owned.requests.values():
            if not (owned.ended or owned.leaving):
                self._probing[owned] = None
        self._wake.set()

    def forget(self, owned: OwnedEntry) -> None:
        """Let go of an entry; what waits for it will not be delivered."""
        if owned in self._unlogged and owned.output is not None:
            self._counters.outbox_bytes -= owned.output.unlogged_bytes
        for waiting in (self._unlogged, self._probing, self._acking):
            waiting.pop(owned, None)
        self._owned.forget(owned)
        self._tell_progress()

    async def run(self) -> None:
        """Deliver until cancelled."""
        backoff = Backoff()
        failing = False
        while True:
            if not (self._unlogged or self._probing or self._acking or self._service):
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
            replies = await self._send(messages)
        except FAILURES:
            self._resend_finishes()
            raise
        finally:
            self._sending = False
        failure = None
        for message, reply in replies:
            if isinstance(reply, Exception) and is_transient(reply):
                failure = reply
            elif isinstance(reply, Exception):
                about(log, message.owned.request_id).error(
                    "write refused by Redis, claim given up: %s", reply
                )
                self._lose(message.owned)
            elif message.kind == "ack":
                self._acked(message.owned, int(reply))
            else:
                self._replied(message, reply)
        if failure is not None:
            self._resend_finishes()
        return failure

    async def _send(self, messages: list[Message]) -> list[tuple[Message, Any]]:
        """Each message's reply, which may be an error."""
        delivered: list[tuple[Message, Any]] = []
        refused: list[Message] = []
        sent = script_batches(self._settings, self._consumer, messages)
        replies = await self._connection.batch(
            [*(script_batch.call for script_batch in sent), *self._service_calls()]
        )
        for script_batch, reply in zip(sent, replies, strict=False):  # service counts need no reply
            if len(script_batch.messages) > 1 and isinstance(reply, Exception) and not is_transient(reply):
                refused += script_batch.messages
            else:
                delivered += script_batch.replies(reply)
        if refused:
            # One of them is why. Those before it in its batch may be written already: they are repetitions.
            sent = script_batches(self._settings, self._consumer, refused, alone=True)
            replies = await self._connection.batch([script_batch.call for script_batch in sent])
            for script_batch, reply in zip(sent, replies, strict=True):
                delivered += script_batch.replies(reply)
        return delivered

    def _acked(self, owned: OwnedEntry, answer: int) -> None:
        if answer >= 0:
            self._counters.dead_letters += bool(owned.dead) and answer
            self.forget(owned)
        elif owned.output is not None and owned.output.ending is not None:
            about(log, owned.request_id).warning("Redis lost its done event; resending")
            self._counters.relogged += 1
            self._resend_finish(owned)
        else:
            # Another worker's end is gone. The entry is untracked now, and will be claimed again.
            about(log, owned.request_id).warning(
                "Redis lost the done event that another worker had written; it will be claimed again"
            )
            self.forget(owned)

    def _resend_finishes(self) -> None:
        """In a cluster no script sees a request and its entry, so after a failure ends are sent once more.

        The node of the one may have come back without its last second, and not that of the other.
        """
        if self._settings.clustered:
            for owned in list(self._acking):
                if owned.output is not None and owned.output.ending is not None:
                    self._resend_finish(owned)

    def _resend_finish(self, owned: OwnedEntry) -> None:
        del self._acking[owned]
        owned.ended = False
        self._unlogged[owned] = None

    def _gather(self) -> list[Message]:
        messages: list[Message] = []
        size = 0
        for owned in list(self._unlogged):
            output = owned.output
            message = (
                next_message(self._settings, self._consumer, owned, output) if output is not None else None
            )
            if message is None:
                del self._unlogged[owned]
                continue
            messages.append(message)
            size += message.size
            if size > _LONGEST_FLUSH:
                break
        answered_anyway = {message.owned for message in messages}
        messages += [
            probe(owned, owned.output)
            for owned in self._probing
            if owned.output is not None and owned not in answered_anyway
        ]
        return messages + [ack(self._settings, owned) for owned in self._acking]

    def _service_calls(self) -> list[Call]:
        service, self._service = self._service, Counter()
        key = self._settings.keys.service(self._settings.model)
        calls: list[Call] = [("HINCRBY", key, lane, tokens) for lane, tokens in service.items() if tokens]
        return [*calls, ("PEXPIRE", key, milliseconds(SERVICE_TTL))] if calls else []

    def _replied(self, message: Message, reply: list[bytes]) -> None:
        owned = message.owned
        self._probing.pop(owned, None)
        let_go = owned.leaving or self._owned.requests.get(owned.request_id or "") is not owned
        if owned.output is None or let_go:
            return  # let go while the call was under way
        if reply[0] == b"lost":
            _explain_loss(owned, status=reply[1].decode(), epoch=reply[2].decode())
            owned.superseded = True
            self._lose(owned)
        elif message.kind == "end":
            if owned.output.ending is not None:
                self._counters.finished[owned.output.ending.reason] += 1
            self._unlogged.pop(owned, None)
            self.ack(owned)
        elif self._confirm(message, owned.output, int(reply[1])) and reply[2]:
            self._on_cancel(owned)

    def _confirm(self, message: Message, output: Output, logged: int) -> bool:
        owned = message.owned
        if not output.confirm(logged):
            log.error(
                "request %s: its log has %d tokens, which this worker never wrote; dropped",
                owned.request_id,
                logged,
            )
            self._lose(owned)
            return False
        if logged < message.seq:
            log.warning(
                "request %s: Redis has lost its tokens from %d to %d; sending them again",
                owned.request_id,
                logged,
                message.seq,
            )
            self._counters.relogged += 1
        elif message.count:
            self._counters.tokens_logged += logged - message.seq
            self._counters.bytes_logged += message.size
        if output.known > logged or output.ending is not None:
            self._unlogged[owned] = None
        else:
            self._unlogged.pop(owned, None)
        return True

    def _lose(self, owned: OwnedEntry) -> None:
        self._counters.lost_claims += 1
        self.forget(owned)
        self._on_lost(owned)

    def _changed(self, owned: OwnedEntry, added: int) -> None:
        self._unlogged[owned] = None
        self._counters.outbox_bytes += added
        self._wake.set()

    def _report_progress(self) -> None:
        waiting = (owned.output.unlogged_bytes for owned in self._unlogged if owned.output is not None)
        self._counters.outbox_bytes = sum(waiting)
        self._tell_progress()

    def _tell_progress(self) -> None:
        self._progress.set()
        self._progress = anyio.Event()


def _explain_loss(owned: OwnedEntry, *, status: str, epoch: str) -> None:
    if not status:
        about(log, owned.request_id).error("state lost from Redis; sequence dropped")
    elif status == "running":
        about(log, owned.request_id).warning(
            "lease lost to another worker, epoch %s > %d; sequence dropped", epoch, owned.epoch
        )
    else:
        about(log, owned.request_id).warning("already %s by another worker; sequence dropped", status)
