"""OpenAI's text completions, as objects and as chunks."""

from itertools import accumulate
from typing import Any, ClassVar

from ..protocol import Delta, FinishReason, TokenLogprobs
from ..result import Result
from .json_values import finite_logprobs
from .token_names import TokenName


class CompletionFormat:
    """How a choice looks in ``/v1/completions``."""

    whole: ClassVar[str] = "text_completion"
    chunk: ClassVar[str] = "text_completion"

    def __init__(self, name: TokenName) -> None:
        self._name = name

    def choice(self, index: int, result: Result) -> dict[str, Any]:
        logprobs = self._logprobs(result.tokens, result.logprobs, 0)
        return _choice(index, result.text, logprobs, result.finish_reason)

    def opening(self, index: int) -> None:
        del index

    def piece(self, index: int, delta: Delta) -> dict[str, Any]:
        return _choice(index, delta.text, self._logprobs(delta.tokens, delta.logprobs, delta.pos))

    def ending(self, index: int, reason: FinishReason) -> dict[str, Any]:
        return _choice(index, "", None, reason)

    def _logprobs(
        self, tokens: list[int], items: list[TokenLogprobs] | None, offset: int
    ) -> dict[str, Any] | None:
        items = finite_logprobs(items)
        if items is None:
            return None
        names = [self._name(token) for token in tokens]
        offsets = list(accumulate(map(len, names[:-1]), initial=offset)) if names else []
        return {
            "tokens": names,
            "token_logprobs": [own for own, _ in items],
            "top_logprobs": [{self._name(token): value for token, value in top} for _, top in items],
            "text_offset": offsets,
        }


def _choice(
    index: int, text: str, logprobs: dict[str, Any] | None = None, reason: FinishReason | None = None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
