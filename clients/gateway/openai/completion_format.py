"""Format of OpenAI's text completions: objects and chunks."""

from collections.abc import Sequence
from typing import Any, ClassVar

from ...json_values import finite
from ...protocol import FinishReason
from ...result import Result
from .placement import PlacedToken
from .vocabulary import Vocabulary, name_of


class CompletionFormat:
    """Format of a choice of ``/v1/completions``."""

    whole: ClassVar[str] = "text_completion"
    chunk: ClassVar[str] = "text_completion"

    def __init__(self, vocabulary: Vocabulary | None) -> None:
        self.vocabulary = vocabulary

    def choice(self, index: int, result: Result, placed: Sequence[PlacedToken] | None) -> dict[str, Any]:
        return _choice(index, result.text, self._logprobs(placed), result.finish_reason)

    def opening(self, index: int) -> None:
        del index

    def piece(self, index: int, text: str, placed: Sequence[PlacedToken] | None) -> dict[str, Any]:
        return _choice(index, text, self._logprobs(placed))

    def ending(self, index: int, reason: FinishReason) -> dict[str, Any]:
        return _choice(index, "", None, reason)

    def _logprobs(self, placed: Sequence[PlacedToken] | None) -> dict[str, Any] | None:
        if placed is None:
            return None
        offsets = [item.start for item in placed if item.start is not None]
        return {
            "tokens": [name_of(self.vocabulary, item.token) for item in placed],
            "token_logprobs": [finite(item.logprob) for item in placed],
            "top_logprobs": [self._top(item.top) for item in placed],
            # Offsets are unknown without a vocabulary, and the field is optional.
            **({} if len(offsets) < len(placed) else {"text_offset": offsets}),
        }

    def _top(self, top: list[tuple[int, float]]) -> dict[str, float]:
        """By name; of tokens with the same name, such as a letter and its byte, the most likely."""
        named: dict[str, float] = {}
        for token, logprob in top:
            named.setdefault(name_of(self.vocabulary, token), finite(logprob))
        return named


def _choice(
    index: int, text: str, logprobs: dict[str, Any] | None = None, reason: FinishReason | None = None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
