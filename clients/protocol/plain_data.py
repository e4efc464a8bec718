"""Data that msgpack and JSON both carry, and the place in it that they do not."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, cast

MAX_DEPTH: Final = 64
"""Of lists and maps in one another."""
_INTEGERS: Final = range(-(1 << 63), 1 << 64)


@dataclass(frozen=True, slots=True)
class Flaw:
    """Where data cannot be carried (``messages.0.content``; empty for the whole), and what they must be."""

    field: str
    problem: str


def first_flaw(value: Any, *, finite: bool = False) -> Flaw | None:
    """The first flaw of ``value``: text without UTF-8, integers beyond 64 bits, and what is no plain data.

    With ``finite``, which JSON needs, infinities and NaN as well.
    """
    waiting: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while waiting:
        path, item = waiting.pop()
        problem = None
        match item:
            case None | bool() | bytes():
                continue
            case str():
                if not _is_unicode(item):
                    problem = "must be valid Unicode, without lone surrogates"
            case int():
                if item not in _INTEGERS:
                    problem = "must be an integer of at most 64 bits"
            case float():
                if finite and not isfinite(item):
                    problem = "must be a finite number"
            case tuple() if type(item) is not tuple:  # such as msgpack's extension types
                problem = f"must be plain data, got {type(item).__name__}"
            case Mapping() | list() | tuple():
                if len(path) >= MAX_DEPTH:
                    return Flaw(path[0], f"must be nested at most {MAX_DEPTH} deep")
                waiting += reversed([((*path, name), part) for name, part in _parts(item)])
                problem = _problem_of_names(item) if isinstance(item, Mapping) else None
            case _:
                problem = f"must be plain data, got {type(item).__name__}"
        if problem is not None:
            return Flaw(".".join(path), problem)
    return None


def _parts(item: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(item, Mapping):
        return ((str(name), part) for name, part in cast(Mapping[Any, Any], item).items())
    return ((str(index), part) for index, part in enumerate(item))


def _problem_of_names(item: Mapping[Any, Any]) -> str | None:
    for name in item:
        if not isinstance(name, str):
            return f"must have names that are text, got {type(name).__name__}"
        if not _is_unicode(name):
            return "must have names of valid Unicode, without lone surrogates"
    return None


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
