"""What the broker expects of an engine's results, whichever engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ...clients.protocol import FinishReason, TokenLogprobs


class NewTokens(Protocol):
    """New output of one sequence: ``seq`` output tokens and ``pos`` characters of text came before it.

    Where only text is new, the last token comes along once more.
    """

    @property
    def sequence_id(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def seq(self) -> int: ...
    @property
    def pos(self) -> int: ...
    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def text(self) -> str: ...
    @property
    def logprobs(self) -> Sequence[TokenLogprobs] | None: ...


class Ending(Protocol):
    """A sequence that ended, with all of its output, that of earlier epochs included."""

    @property
    def sequence_id(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def reason(self) -> FinishReason: ...
    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def text(self) -> str: ...
    @property
    def logprobs(self) -> Sequence[TokenLogprobs] | None: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def error_code(self) -> str | None: ...
    @property
    def error_message(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Unrun:
    """The ending of a request that this worker did not run: what earlier epochs had, and why it ends."""

    sequence_id: str
    epoch: int
    reason: FinishReason
    tokens: Sequence[int] = ()
    text: str = ""
    logprobs: Sequence[TokenLogprobs] | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    error_code: str | None = None
    error_message: str | None = None
