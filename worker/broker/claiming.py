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
from .entries import Claim, Held, Holdings, Resumed, Unrun
from .messages import queue_at, queue_of
from .orphans import SUSPICIOUS
from .outbox import Outbox
from .output import Output
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

    held: Held
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
        holdings: Holdings,
        outbox: Outbox,
        control: Control,
        clock: Clock,
        consumer: str,
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._counters = connection.counters
        self._holdings = holdings
        self._outbox = outbox
        self._control = control
        self._clock = clock
        self._consumer = consumer
        self._suspects: deque[_Read] = deque()

    async def claim(self, taken: Sequence[Held]) -> list[Claim]:
        """Claim what was taken, in one round trip; returns what is to be run, in the same order.

        Requests that were cancelled or expired in the queue, are invalid, or have used up their attempts are
        ended through the outbox. Repeats until Redis has decided about every entry.

        Requests that may have killed their earlier workers are run one at a time: others that came all
        the same wait here, unclaimed and not charged an attempt, so as not to die with the one that did it.
        """
        claims = await self._claim([read for held in taken if (read := await self._read(held)) is not None])
        self._suspects = deque(read for read in self._suspects if self._holdings.has(read.held))
        while self._suspects and not self._runs_a_suspect():
            claims += await self._claim([self._suspects.popleft()], suspects=True)
        return claims

    @property
    def room_for_suspects(self) -> int:
        """How many more may be taken: one, while none runs and none waits."""
        return 0 if self._suspects or self._runs_a_suspect() else 1

    @property
    def may_claim_a_suspect(self) -> bool:
        return bool(self._suspects) and not self._runs_a_suspect()

    def drop_suspects(self) -> None:
        """Leave those that wait to others: the next heartbeat finds them to be strays."""
        while self._suspects:
            self._holdings.forget(self._suspects.popleft().held)

    def _runs_a_suspect(self) -> bool:
        return any(
            held.suspect and held.output is not None and held.output.ending is None
            for held in self._holdings.requests.values()
        )

    async def _claim(self, waiting: list[_Read], *, suspects: bool = False) -> list[Claim]:
        claims: list[Claim] = []
        backoff = Backoff()
        failing = False
        while waiting:
            try:
                replies: list[Any] = await self._connection.batch(
                    [self._call(read, suspects=suspects) for read in waiting]
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
            if all(one.held is not read.held for one in missing):
                self._pass_over(read)
        return missing

    def _pass_over(self, read: _Read) -> None:
        about(log, read.request_id).info(
            "duplicate queue entry %s acknowledged: another entry of this request was claimed",
            read.held.entry.id,
        )
        self._counters.duplicates += 1
        self._outbox.settle(read.held)

    async def _read(self, held: Held) -> _Read | None:
        body = held.body
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
                    held.entry.id,
                    error,
                )
                held.dead = f"invalid_request: {error}"
                self._outbox.settle(held)
                return None
            return _Read(held, error.request_id, None, error)
        if request.model != self._settings.model:
            self._counters.invalid += 1
            problem = f"must be the queue's {self._settings.model!r}, got {request.model!r}"
            return _Read(held, request.id, request, RequestError("model", problem, request.id))
        return _Read(held, request.id, request, None)

    def _call(self, read: _Read, *, suspects: bool) -> Call:
        settings, entry = self._settings, read.held.entry
        keys = [settings.keys.request(read.request_id), settings.keys.events(read.request_id)]
        if not settings.clustered:
            keys.append(queue_of(settings, read.held))
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
                SUSPICIOUS,
                int(suspects),
                GROUP,
                int(entry.excused),
                read.instead_of,
            ],
        )

    def _decided(self, read: _Read, reply: list[Any]) -> list[Claim]:
        held = read.held
        verdict, now = reply[0].decode(), int(reply[1])
        self._clock.told(now)
        if verdict == "finished":
            held.request_id = read.request_id
            held.dead = reply[2].decode()
            self._outbox.settle(held)
        elif verdict == "duplicate":
            self._pass_over(read)
        elif verdict == "suspect":
            self._suspects.append(read)
        elif verdict == "stale":
            # Not settled: if this consumer is its owner after all, the entry comes back by a sweep.
            about(log, read.request_id).warning(
                "lease lost before the claim: another worker owns its queue entry"
            )
            self._counters.lost_claims += 1
            self._holdings.forget(held)
        else:
            return self._claimed(read, verdict, now, reply[2:])
        return []

    def _claimed(self, read: _Read, verdict: str, now: int, terms: list[Any]) -> list[Claim]:
        held, request = read.held, read.request
        epoch, attempts, logged, events, abandoned = terms
        self._counters.abandoned += abandoned
        resumed = None
        damage = None
        try:
            resumed = read_back(events, logged)
        except ValueError as error:
            damage = str(error)
        tokens, text = (resumed.tokens, resumed.text) if resumed is not None else ([], "")
        self._holdings.claimed(held, read.request_id, epoch, Output(len(tokens), len(text)))
        held.deadline = request.deadline if request is not None else None
        held.metadata = request.metadata if request is not None else None
        end = Unrun(read.request_id, epoch, "error", tokens, text, resumed.logprobs if resumed else None)
        if read.error is not None:
            code = "invalid_request" if read.request is None else "unknown_model"
            self._fail(held, end, code, str(read.error))
        elif verdict == "cancelled" or verdict == "expired":
            self._outbox.end(held, replace(end, reason=verdict))
        elif verdict == "poison":
            message = f"given up after {attempts - 1} attempts that ended without a word from the worker"
            held.dead = f"too_many_attempts: {message}"
            about(log, read.request_id).error("%s", message)
            self._fail(held, end, "too_many_attempts", message)
        elif damage is not None or request is None:
            self._fail(held, end, "log_damaged", f"its event log cannot be continued: {damage}")
        else:
            if len(held.body or b"") > _LARGEST_KEPT:
                held.body = None
            held.suspect = attempts > SUSPICIOUS
            self._control.watch(held)
            self._counters.resumed += resumed is not None
            arrival = min(now, int(held.entry.id.partition("-")[0]))
            priority = held.entry.stream // LANES
            return [Claim(request, epoch, attempts, priority, resumed, arrival, now - arrival)]
        return []

    def _fail(self, held: Held, end: Unrun, code: str, message: str) -> None:
        self._outbox.end(held, replace(end, error_code=code, error_message=message))

    def _refused(self, read: _Read, error: Exception) -> None:
        held = read.held
        about(log, read.request_id).error("claim refused by Redis: %s", error)
        if held.entry.deliveries > self._settings.max_attempts:
            held.dead = f"unclaimable: {error}"
            self._outbox.settle(held)
        else:
            self._holdings.forget(held)


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
