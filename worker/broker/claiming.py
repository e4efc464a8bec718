"""From entries taken off the queue to claims that can be run; everything else is answered here."""

import logging
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import anyio.to_thread

from ...clients.protocol import (
    GROUP,
    LANES,
    Delta,
    EventError,
    Request,
    RequestError,
    TokenLogprobs,
    decode_event,
    decode_request,
)
from ...clients.transcript import Transcript
from ..logs import about
from .clock import Clock
from .connection import FAILURES, Backoff, Call, Connection, is_transient
from .control import Control
from .entries import Claim, OwnedEntries, OwnedEntry, Resumed, UnrunResult
from .messages import queue_at, queue_of
from .outbox import Outbox
from .output import Output
from .reclaim import QUARANTINE_AFTER
from .scripts import CLAIM, ON_QUEUE
from .settings import BrokerSettings, milliseconds

log = logging.getLogger(__name__)

_LARGE = 64 << 10
"""Bytes of an entry from which it is decoded in a thread, beside the event loop."""
_LARGEST_KEPT = 1 << 20
"""Bytes of an entry that is kept while its request runs, in case it has to be put back."""
_PLACE = re.compile(r"(4[0-7]|[1-3]?[0-9])/([0-9]{1,20}-[0-9]{1,20})\Z")
"""A number of a stream and an entry's id, in a state that clients can write to."""


@dataclass(frozen=True, slots=True)
class _Read:
    """An entry's request, or why there is none."""

    owned: OwnedEntry
    request_id: str
    request: Request | None
    error: RequestError | None
    instead_of: str = ""
    """Place of an entry that started the request, and was taken off its queue by somebody else."""


class Claimer:
    """Claims entries for one consumer."""

    def __init__(
        self,
        settings: BrokerSettings,
        connection: Connection,
        owned_entries: OwnedEntries,
        outbox: Outbox,
        control: Control,
        clock: Clock,
        consumer: str,
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._counters = connection.counters
        self._owned = owned_entries
        self._outbox = outbox
        self._control = control
        self._clock = clock
        self._consumer = consumer
        self._quarantined: deque[_Read] = deque()

    async def claim(self, taken: Sequence[OwnedEntry]) -> list[Claim]:
        """Claim what was taken, in one round trip; returns what is to be run, in the same order.

        Requests that were cancelled or expired in the queue, are invalid, or have used up their attempts are
        ended through the outbox. Repeats until Redis has decided about every entry.

        Requests that may have killed their earlier workers are run one at a time: others that came all
        the same wait here, unclaimed and not charged an attempt, so as not to die with the one that did it.
        """
        claims = await self._claim([read for owned in taken if (read := await self._read(owned)) is not None])
        self._quarantined = deque(read for read in self._quarantined if self._owned.has(read.owned))
        while self._quarantined and not self._runs_quarantined():
            claims += await self._claim([self._quarantined.popleft()], quarantined=True)
        return claims

    @property
    def quarantine_credits(self) -> int:
        """How many more may be taken: one, while none runs and none waits."""
        return 0 if self._quarantined or self._runs_quarantined() else 1

    @property
    def may_claim_quarantined(self) -> bool:
        return bool(self._quarantined) and not self._runs_quarantined()

    def drop_quarantined(self) -> None:
        """Leave those that wait to others: the next heartbeat finds them untracked."""
        while self._quarantined:
            self._owned.forget(self._quarantined.popleft().owned)

    def _runs_quarantined(self) -> bool:
        return any(
            owned.quarantined and owned.output is not None and owned.output.ending is None
            for owned in self._owned.requests.values()
        )

    async def _claim(self, waiting: list[_Read], *, quarantined: bool = False) -> list[Claim]:
        claims: list[Claim] = []
        backoff = Backoff()
        failing = False
        while waiting:
            try:
                replies: list[Any] = await self._connection.batch(
                    [self._call(read, quarantined=quarantined) for read in waiting]
                )
            except FAILURES as error:
                replies = [error] * len(waiting)
            undecided: list[_Read] = []
            doubles: list[tuple[_Read, str]] = []
            for read, reply in zip(waiting, replies, strict=True):
                if not isinstance(reply, Exception):
                    if _place_taken(reply):
                        doubles.append((read, reply[2].decode(errors="replace")))
                    else:
                        claims += self._decided(read, reply)
                elif is_transient(reply):
                    undecided.append(read)
                else:
                    self._refused(read, reply)
            if undecided:
                failures = [
                    reply for reply in replies if isinstance(reply, Exception) and is_transient(reply)
                ]
                self._connection.report("claiming requests", failures[-1], repeated=failing)
                failing = True
                await backoff.sleep()
            waiting = undecided + await self._in_place_of_missing(doubles)
        return claims

    async def _in_place_of_missing(self, doubles: Sequence[tuple[_Read, str]]) -> list[_Read]:
        """Of entries whose request was started by another, at a place: those where that is off its queue.

        Somebody trimmed the stream, or deleted entries. All others are passed over.
        """

        doubtful = [
            (read, place, match) for read, place in doubles if (match := _PLACE.match(place)) is not None
        ]
        calls = [
            ON_QUEUE.call([queue_at(self._settings, int(match[1]))], [match[2]]) for *_, match in doubtful
        ]

        async def look() -> list[Any]:
            replies = await self._connection.batch(calls)
            if failed := [one for one in replies if isinstance(one, Exception) and is_transient(one)]:
                raise failed[0]
            return replies

        missing: list[_Read] = []
        if calls:
            replies = await self._connection.retrying("looking for entries", look)
            for (read, place, _), on_queue in zip(doubtful, replies, strict=True):
                if on_queue == 0:
                    about(log, read.request_id).warning(
                        "queue entry deleted by someone else; claimed by another entry of this request"
                    )
                    missing.append(replace(read, instead_of=place))
        for read, _ in doubles:
            if all(one.owned is not read.owned for one in missing):
                self._pass_over(read)
        return missing

    def _pass_over(self, read: _Read) -> None:
        about(log, read.request_id).info(
            "duplicate queue entry %s acknowledged: another entry of this request was claimed",
            read.owned.entry.id,
        )
        self._counters.duplicates += 1
        self._outbox.ack(read.owned)

    async def _read(self, owned: OwnedEntry) -> _Read | None:
        body = owned.body
        try:
            if body is None:
                raise RequestError("r", "the entry has no such field")
            if len(body) < _LARGE:
                request = decode_request(body)
            else:
                request = await anyio.to_thread.run_sync(decode_request, body)
        except RequestError as error:
            self._counters.invalid += 1
            if error.request_id is None:
                log.warning(
                    "queue entry %s: not a request and no readable id, moved to the dead letters: %s",
                    owned.entry.id,
                    error,
                )
                owned.dead = f"invalid_request: {error}"
                self._outbox.ack(owned)
                return None
            return _Read(owned, error.request_id, None, error)
        if request.model != self._settings.model:
            self._counters.invalid += 1
            problem = f"must be the queue's {self._settings.model!r}, got {request.model!r}"
            return _Read(owned, request.id, request, RequestError("model", problem, request.id))
        return _Read(owned, request.id, request, None)

    def _call(self, read: _Read, *, quarantined: bool) -> Call:
        settings, entry = self._settings, read.owned.entry
        keys = [settings.keys.request(read.request_id), settings.keys.events(read.request_id)]
        if not settings.clustered:
            keys.append(queue_of(settings, read.owned))
        deadline = read.request.deadline if read.request is not None else None
        return CLAIM.call(
            keys,
            [
                entry.id,
                entry.stream,
                entry.deliveries,
                self._consumer,
                settings.model,
                "" if deadline is None else deadline,
                milliseconds(settings.request_ttl),
                settings.max_attempts,
                QUARANTINE_AFTER,
                int(quarantined),
                GROUP,
                int(entry.excused),
                read.instead_of,
            ],
        )

    def _decided(self, read: _Read, reply: list[Any]) -> list[Claim]:
        owned = read.owned
        verdict, now = reply[0].decode(), int(reply[1])
        self._clock.sync(now)
        if verdict == "finished":
            owned.request_id = read.request_id
            owned.dead = reply[2].decode()
            self._outbox.ack(owned)
        elif verdict == "duplicate":
            self._pass_over(read)
        elif verdict == "quarantined":
            self._quarantined.append(read)
        elif verdict == "stale":
            # Not acked: if this consumer is its owner after all, a reclaim brings the entry back.
            about(log, read.request_id).warning(
                "lease lost before the claim: another worker owns its queue entry"
            )
            self._counters.lost_claims += 1
            self._owned.forget(owned)
        else:
            return self._claimed(read, verdict, now, reply[2:])
        return []

    def _claimed(self, read: _Read, verdict: str, now: int, terms: list[Any]) -> list[Claim]:
        owned, request = read.owned, read.request
        epoch, attempts, logged, events, abandoned = terms
        self._counters.abandoned += abandoned
        resumed = None
        damage = None
        try:
            resumed = read_back(events, logged)
        except ValueError as error:
            damage = str(error)
        tokens, text = (resumed.tokens, resumed.text) if resumed is not None else ([], "")
        self._owned.claimed(owned, read.request_id, epoch, Output(len(tokens), len(text)))
        owned.deadline = request.deadline if request is not None else None
        owned.metadata = request.metadata if request is not None else None
        end = UnrunResult(
            read.request_id, epoch, "error", tokens, text, resumed.logprobs if resumed else None
        )
        if read.error is not None:
            code = "invalid_request" if read.request is None else "unknown_model"
            self._fail(owned, end, code, str(read.error))
        elif verdict == "cancelled" or verdict == "expired":
            self._outbox.end(owned, replace(end, reason=verdict))
        elif verdict == "poison":
            message = f"given up after {attempts - 1} attempts that ended without a word from the worker"
            owned.dead = f"too_many_attempts: {message}"
            about(log, read.request_id).error("%s", message)
            self._fail(owned, end, "too_many_attempts", message)
        elif damage is not None or request is None:
            self._fail(owned, end, "log_damaged", f"its event log cannot be continued: {damage}")
        else:
            if len(owned.body or b"") > _LARGEST_KEPT:
                owned.body = None
            owned.quarantined = attempts > QUARANTINE_AFTER
            self._control.watch(owned)
            self._counters.resumed += resumed is not None
            arrival = min(now, int(owned.entry.id.partition("-")[0]))
            priority = owned.entry.stream // LANES
            return [Claim(request, epoch, attempts, priority, resumed, arrival, now - arrival)]
        return []

    def _fail(self, owned: OwnedEntry, end: UnrunResult, code: str, message: str) -> None:
        self._outbox.end(owned, replace(end, error_code=code, error_message=message))

    def _refused(self, read: _Read, error: Exception) -> None:
        owned = read.owned
        about(log, read.request_id).error("claim refused by Redis: %s", error)
        if owned.entry.deliveries > self._settings.max_attempts:
            owned.dead = f"unclaimable: {error}"
            self._outbox.ack(owned)
        else:
            self._owned.forget(owned)


def _place_taken(reply: list[Any]) -> bool:
    """Whether another entry has started the request."""
    return reply[0] == b"duplicate" and reply[2] != b""


def read_back(events: Sequence[bytes], logged: int) -> Resumed | None:
    """The output in a log of earlier epochs; None for an empty one.

    Raises:
        ValueError: the log has a gap, bytes that are no event, or not the ``logged`` tokens it should have.
    """
    transcript = Transcript()
    tokens: list[int] = []
    text: list[str] = []
    logprobs: list[TokenLogprobs] = []
    for data in events:
        try:
            event = decode_event(data)
        except EventError as error:
            raise ValueError(str(error)) from error
        piece = None if event is None else transcript.take(event)
        if isinstance(piece, Delta):
            tokens += piece.tokens
            text.append(piece.text)
            logprobs += piece.logprobs or []
    if len(tokens) != logged:
        raise ValueError(f"it has {len(tokens)} tokens where {logged} were logged")
    if not tokens:
        return None
    return Resumed(tokens, "".join(text), logprobs if len(logprobs) == len(tokens) else None)
