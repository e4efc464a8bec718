"""Listens to every channel and looks into running logs, checking each event; measures recoveries."""

import asyncio
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import redis.asyncio
import redis.exceptions

from headrace.clients.protocol import Delta, Done, Keys, decode_event

from .views import Violation, check_piece
from .workload import Job

FAILURES = (redis.exceptions.RedisError, OSError)


@dataclass
class _Heard:
    """How far one channel has come."""

    tokens: int = 0
    epoch: int = 0
    ended: bool = False


@dataclass
class Recovery:
    """Seconds from the kill of a worker to the first event of the next epoch, for each of its requests."""

    waiting: dict[str, tuple[int, float]] = field(default_factory=dict[str, tuple[int, float]])
    seconds: list[float] = field(default_factory=list[float])

    def killed(self, request_id: str, epoch: int) -> None:
        self.waiting[request_id] = epoch, time.monotonic()

    def heard(self, request_id: str, epoch: int) -> None:
        before, since = self.waiting.get(request_id, (epoch, 0.0))
        if epoch > before:
            self.seconds.append(time.monotonic() - since)
            del self.waiting[request_id]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds) if self.seconds else 0.0

    @property
    def worst(self) -> float:
        return max(self.seconds, default=0.0)


class Recorder:
    """``jobs`` are those of the run, by request id; ``durable``: Redis never forgets what it confirmed."""

    def __init__(self, server: redis.asyncio.Redis, jobs: Mapping[str, Job], *, durable: bool) -> None:
        self.recovery = Recovery()
        self.violations: list[Violation] = []
        self.messages = 0
        self.looks = 0
        self.repetitions = 0
        self._server = server
        self._jobs = jobs
        self._durable = durable
        self._heard: dict[str, _Heard] = {}
        self._listening_since = 0.0

    async def listen(self) -> None:
        """Until cancelled."""
        while True:
            channel = self._server.pubsub(ignore_subscribe_messages=True)
            try:
                await channel.psubscribe("headrace:channel:*")
                await channel.get_message(timeout=1.0)
                self._listening_since = time.monotonic()
                while True:
                    message: dict[str, Any] | None = await channel.get_message(timeout=1.0)
                    if message is not None:
                        self._note(message["channel"].decode(), message["data"])
            except FAILURES:
                for heard in self._heard.values():
                    heard.tokens = -1  # unknown until the next event
                await asyncio.sleep(0.02)
            finally:
                await channel.aclose()

    async def inspect(self, request_id: str) -> None:
        """Look at a log as it is now."""
        job = self._jobs[request_id]
        try:
            entries: Any = await self._server.xrange(Keys().events(request_id))
        except FAILURES:
            return
        self.looks += 1
        tokens = epoch = 0
        try:
            for _, fields in entries:
                event = decode_event(fields[b"e"])
                assert event is not None
                if event.epoch < epoch:
                    raise Violation(f"{request_id}, log: epoch {event.epoch} after {epoch}")
                epoch = event.epoch
                if event.seq != tokens:
                    raise Violation(f"{request_id}, log: an event at {event.seq} after token {tokens}")
                if isinstance(event, Delta):
                    check_piece(job, "log", event)
                    tokens += len(event.tokens)
        except Violation as violation:
            self.violations.append(violation)

    def _note(self, channel: str, data: bytes) -> None:
        request_id = channel.partition("{")[2].rstrip("}")
        job = self._jobs.get(request_id)
        event = decode_event(data)
        if job is None or event is None:
            return
        self.messages += 1
        self.recovery.heard(request_id, event.epoch)
        heard = self._heard.setdefault(request_id, self._unheard(job))
        try:
            if isinstance(event, Delta):
                check_piece(job, "channel", event)
            if self._durable:
                self._check_order(request_id, heard, event)
        except Violation as violation:
            self.violations.append(violation)
        heard.epoch = event.epoch
        heard.tokens = max(heard.tokens, event.seq + (len(event.tokens) if isinstance(event, Delta) else 0))
        heard.ended = heard.ended or isinstance(event, Done)

    def _unheard(self, job: Job) -> _Heard:
        return _Heard(0 if job.submitted_at and job.submitted_at[0] > self._listening_since else -1)

    def _check_order(self, request_id: str, heard: _Heard, event: Delta | Done) -> None:
        where = f"{request_id}, channel: {type(event).__name__} at {event.seq} in epoch {event.epoch}"
        if heard.ended:
            raise Violation(f"{where}, after done")
        if event.epoch < heard.epoch:
            raise Violation(f"{where}, after epoch {heard.epoch}")
        # Repetitions are allowed, and readers drop them: an end brings along what its worker has not been
        # told is logged. Gaps are not.
        if heard.tokens >= 0 and event.seq > heard.tokens:
            raise Violation(f"{where}, after token {heard.tokens}")
        self.repetitions += event.seq < heard.tokens
