"""OpenAI's chat completions, as objects and as chunks."""

from typing import Any, ClassVar

from ..protocol import Delta, FinishReason, TokenLogprobs
from ..result import Result
from .json_values import finite
from .token_names import TokenName


class ChatFormat:
    """How a choice looks in ``/v1/chat/completions``."""

    whole: ClassVar[str] = "chat.completion"
    chunk: ClassVar[str] = "chat.completion.chunk"

    def __init__(self, name: TokenName) -> None:
        self._name = name

    def choice(self, index: int, result: Result) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": result.text, "refusal": None},
            "logprobs": self._logprobs(result.tokens, result.logprobs),
            "finish_reason": result.finish_reason,
        }

    def opening(self, index: int) -> dict[str, Any]:
        return _chunk(index, {"role": "assistant", "content": ""})

    def piece(self, index: int, delta: Delta) -> dict[str, Any]:
        return _chunk(index, {"content": delta.text}, self._logprobs(delta.tokens, delta.logprobs))

    def ending(self, index: int, reason: FinishReason) -> dict[str, Any]:
        return _chunk(index, {}, None, reason)

    def _logprobs(self, tokens: list[int], items: list[TokenLogprobs] | None) -> dict[str, Any] | None:
        if items is None:
            return None
        content = [
            {**self._named(token, own), "top_logprobs": [self._named(*pair) for pair in top]}
            for token, (own, top) in zip(tokens, items, strict=False)
        ]
        return {"content": content, "refusal": None}

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        name = self._name(token)
        return {"token": name, "logprob": finite(logprob), "bytes": list(name.encode())}


def _chunk(
    index: int,
    delta: dict[str, str],
    logprobs: dict[str, Any] | None = None,
    reason: FinishReason | None = None,
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
