"""Values that JSON can carry: msgpack, in which requests and events travel, can say more."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Final, cast

from .protocol import TokenLogprobs
from .protocol.plain_data import MAX_DEPTH

LEAST_LOGPROB: Final = -9999.0
"""What stands for a probability of zero, as with OpenAI."""


def plain(value: Any, depth: int = 0) -> Any:
    """``value`` with what JSON lacks replaced: bytes by text, keys by text, infinities by null, and by null
    what is nested deeper than a reader may take."""
    if depth > MAX_DEPTH:
        return None
    match value:
        case None | bool() | int():
            return value
        case str():
            return value.encode("utf-8", "replace").decode()
        case float():
            return value if isfinite(value) else None
        case bytes():
            return value.decode("utf-8", "replace")
        case Mapping():
            pairs = cast(Mapping[Any, Any], value).items()
            return {str(plain(key)): plain(item, depth + 1) for key, item in pairs}
        case Sequence():
            return [plain(item, depth + 1) for item in cast(Sequence[Any], value)]
        case _:
            return str(value)


def finite(logprob: float) -> float:
    return logprob if logprob > LEAST_LOGPROB and isfinite(logprob) else LEAST_LOGPROB


def finite_logprobs(items: list[TokenLogprobs] | None) -> list[TokenLogprobs] | None:
    if items is None:
        return None
    return [(finite(own), [(token, finite(value)) for token, value in top]) for own, top in items]
