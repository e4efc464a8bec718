"""What one engine step says to the outside: new tokens, ended sequences, and what was computed."""

from dataclasses import dataclass, field
from typing import Literal

from .iteration import Chunk
from .sequence import TokenLogprobs

FinishReason = Literal["stop", "length", "cancelled", "expired", "error"]


@dataclass(slots=True)
class Delta:
    """New output of one sequence.

    ``seq`` output tokens and ``pos`` characters came before it. Where only text is new (a held-back piece
    released at the end), the last token is repeated, so that ``tokens`` is never empty.
    """

    sequence_id: str
    epoch: int
    seq: int
    pos: int
    tokens: list[int]
    text: str
    logprobs: list[TokenLogprobs] | None = None


@dataclass(slots=True)
class Finished:
    """A sequence that ended, with all of its output. Its blocks are free already."""

    sequence_id: str
    epoch: int
    reason: FinishReason
    tokens: list[int]
    text: str
    logprobs: list[TokenLogprobs] | None
    prompt_tokens: int
    cached_tokens: int
    error_code: str | None = None
    error_message: str | None = None


@dataclass(slots=True)
class Step:
    """The outcome of one iteration, and of cancellations since the step before."""

    number: int = 0
    deltas: list[Delta] = field(default_factory=list[Delta])
    finished: list[Finished] = field(default_factory=list[Finished])
    chunks: list[Chunk] = field(default_factory=list[Chunk])
    """What was scheduled, decodes first."""
    preempted: list[str] = field(default_factory=list[str])
    failed: list[str] = field(default_factory=list[str])
    """Sequences that ended because computing them raised an exception; they are among ``finished``."""
