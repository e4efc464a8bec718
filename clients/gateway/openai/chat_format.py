"""Format of OpenAI's chat completions: objects and chunks."""

from collections.abc import Sequence
from typing import Any, ClassVar

from ...json_values import finite
from ...protocol import FinishReason
from ...result import Result
from .placement import PlacedToken
from .vocabulary import Vocabulary, name_of


class ChatFormat:
    """Format of a choice of ``/v1/chat/completions``."""

    whole: ClassVar[str] = "chat.completion"
    chunk: ClassVar[str] = "chat.completion.chunk"

    def __init__(self, vocabulary: Vocabulary | None) -> None:
        self.vocabulary = vocabulary

    def choice(self, index: int, result: Result, placed: Sequence[PlacedToken] | None) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": result.text, "refusal": None},
            "logprobs": self._logprobs(placed),
            "finish_reason": result.finish_reason,
        }

    def opening(self, index: int) -> dict[str, Any]:
        return _chunk(index, {"role": "assistant", "content": ""})

    def piece(self, index: int, text: str, placed: Sequence[PlacedToken] | None) -> dict[str, Any]:
        return _chunk(index, {"content": text}, self._logprobs(placed))

    def ending(self, index: int, reason: FinishReason) -> dict[str, Any]:
        return _chunk(index, {}, None, reason)

    def _logprobs(self, placed: Sequence[PlacedToken] | None) -> dict[str, Any] | None:
        if placed is None:
            return None
        content = [
            {
                **self._named(item.token, item.logprob, item.data),
                "top_logprobs": [
                    self._named(token, logprob, self._data(token)) for token, logprob in item.top
                ],
            }
            for item in placed
        ]
        return {"content": content, "refusal": None}

    def _named(self, token: int, logprob: float, data: bytes | None) -> dict[str, Any]:
        return {
            "token": name_of(self.vocabulary, token),
            "logprob": finite(logprob),
            "bytes": None if data is None else list(data),
        }

    def _data(self, token: int) -> bytes | None:
        return None if self.vocabulary is None else self.vocabulary.token(token).data


def _chunk(
    index: int,
    delta: dict[str, str],
    logprobs: dict[str, Any] | None = None,
    reason: FinishReason | None = None,
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
