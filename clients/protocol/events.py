"""Events: what a worker says about a request, in the log and on the channel, in msgpack.

An event's bytes are the same in both places. ``seq`` counts output tokens and ``pos`` characters (code
points) of text before the event, so a reader that knows how much it has can take from any event exactly
what it lacks; see ``headrace.clients.transcript``.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, cast, get_args

import msgpack

VERSION: Final = 1

FinishReason = Literal["stop", "length", "cancelled", "expired", "error"]
TokenLogprobs = tuple[float, list[tuple[int, float]]]
"""One token's own log-probability, and the most likely tokens with theirs."""


_T = TypeVar("_T")


class EventError(ValueError):
    """Bytes that are not an event of this protocol version."""


@dataclass(frozen=True, slots=True)
class Delta:
    """Tokens produced since the previous event.

    ``text`` may be empty while a character or a possible stop string is incomplete. ``logprobs`` has one
    item per token when the request asked for it.
    """

    seq: int
    pos: int
    epoch: int
    tokens: list[int]
    text: str
    logprobs: list[TokenLogprobs] | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a finished request. ``cached_tokens`` of the prompt were not computed again."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """Why a request ended with ``finish_reason == "error"``: a stable code, and a sentence for people."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Done:
    """The last event of a request, exactly one. ``seq`` is the number of output tokens in all."""

    seq: int
    epoch: int
    finish_reason: FinishReason
    usage: Usage
    metadata: Any = None
    error: ErrorInfo | None = None


Event = Delta | Done


def encode_event(event: Event) -> bytes:
    """The event's bytes, for the log's ``e`` field and for the channel."""
    body: dict[str, Any]
    if isinstance(event, Delta):
        body = {
            "v": VERSION,
            "type": "delta",
            "seq": event.seq,
            "pos": event.pos,
            "epoch": event.epoch,
            "tokens": event.tokens,
            "text": event.text,
        }
        if event.logprobs is not None:
            body["logprobs"] = event.logprobs
    else:
        usage = event.usage
        body = {
            "v": VERSION,
            "type": "done",
            "seq": event.seq,
            "epoch": event.epoch,
            "finish_reason": event.finish_reason,
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "cached_tokens": usage.cached_tokens,
            },
            "metadata": event.metadata,
        }
        if event.error is not None:
            body["error"] = {"code": event.error.code, "message": event.error.message}
    return cast(bytes, msgpack.packb(body))


def decode_event(data: bytes) -> Event | None:
    """The event in ``data``, or None for a type this version does not know (to be passed over).

    Raises:
        EventError: the bytes are not an event.
    """
    try:
        body = msgpack.unpackb(data)
        kind = body["type"]
        if kind == "delta":
            logprobs = body.get("logprobs")
            return Delta(
                seq=_count(body["seq"]),
                pos=_count(body["pos"]),
                epoch=_count(body["epoch"]),
                tokens=[_of(int, token) for token in body["tokens"]],
                text=_of(str, body["text"]),
                logprobs=None if logprobs is None else [_token_logprobs(item) for item in logprobs],
            )
        if kind == "done":
            error = body.get("error")
            if body["finish_reason"] not in get_args(FinishReason):
                raise ValueError("finish_reason is none of this version's")
            return Done(
                seq=_count(body["seq"]),
                epoch=_count(body["epoch"]),
                finish_reason=body["finish_reason"],
                usage=Usage(**{name: _count(body["usage"].get(name, 0)) for name in Usage.__slots__}),
                metadata=body.get("metadata"),
                error=None if error is None else _error_info(error),
            )
    except (ValueError, TypeError, LookupError, AttributeError, msgpack.UnpackException) as error:
        raise EventError(f"not an event: {str(error) or type(error).__name__}") from None
    return None


def _token_logprobs(item: Any) -> TokenLogprobs:
    own, top = item
    return float(own), [(_of(int, token), float(logprob)) for token, logprob in top]


def _error_info(item: Any) -> ErrorInfo:
    return ErrorInfo(_of(str, item["code"]), _of(str, item["message"]))


def _of(kind: type[_T], value: Any) -> _T:
    if not isinstance(value, kind):
        raise TypeError(f"{kind.__name__} expected, got {type(value).__name__}")
    return value


def _count(value: Any) -> int:
    if _of(int, value) < 0:
        raise ValueError("a count is negative")
    return value
