"""A request's outcome, put together from its events and its state."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import RequestFailed
from .protocol import Delta, Done, ErrorInfo, FinishReason, TokenLogprobs, Usage


@dataclass(frozen=True, slots=True)
class Timings:
    """When things happened, in Unix milliseconds by Redis's clock; None where it was not recorded."""

    created: int | None = None
    """Submitted."""
    started: int | None = None
    """Claimed by the worker that serves it, or served it last."""
    first_token: int | None = None
    finished: int | None = None

    @property
    def waited(self) -> float | None:
        """Seconds in the queue."""
        return _seconds(self.created, self.started)

    @property
    def to_first_token(self) -> float | None:
        """Seconds from submission to the first token."""
        return _seconds(self.created, self.first_token)

    @property
    def took(self) -> float | None:
        """Seconds from submission to the end."""
        return _seconds(self.created, self.finished)


@dataclass(frozen=True, slots=True)
class Result:
    """A request that has ended, whichever way: see ``finish_reason``.

    ``logprobs`` has one item per token when the request asked for it.
    """

    id: str
    text: str
    tokens: list[int]
    finish_reason: FinishReason
    usage: Usage
    logprobs: list[TokenLogprobs] | None = None
    metadata: Any = None
    error: ErrorInfo | None = None
    timings: Timings = field(default_factory=Timings)

    @property
    def completed(self) -> bool:
        """Whether the model came to an end: a stop, or ``max_tokens``."""
        return self.finish_reason in ("stop", "length")


def result_of(request_id: str, deltas: Iterable[Delta], done: Done, timings: Timings) -> Result:
    """The result that successive, gapless ``deltas`` and ``done`` add up to."""
    pieces = list(deltas)
    logprobs = [item for piece in pieces if piece.logprobs is not None for item in piece.logprobs]
    return Result(
        id=request_id,
        text="".join(piece.text for piece in pieces),
        tokens=[token for piece in pieces for token in piece.tokens],
        finish_reason=done.finish_reason,
        usage=done.usage,
        logprobs=logprobs if any(piece.logprobs is not None for piece in pieces) else None,
        metadata=done.metadata,
        error=done.error,
        timings=timings,
    )


def completed_text(result: Result) -> str:
    """The text of a request that completed.

    Raises:
        RequestFailed: it did not.
    """
    if not result.completed:
        raise RequestFailed(result)
    return result.text


def timings_of(state: Mapping[str, str]) -> Timings:
    """The timings in a request's state hash."""
    return Timings(
        created=_milliseconds(state.get("created")),
        started=_milliseconds(state.get("started")),
        first_token=_milliseconds(state.get("first_token")),
        finished=_milliseconds(state.get("finished")),
    )


def _milliseconds(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _seconds(start: int | None, end: int | None) -> float | None:
    return None if start is None or end is None else (end - start) / 1000
