"""JSON bodies: rejects what Python's parser accepts but msgpack, UTF-8 or JSON cannot represent."""

import json
import re
from typing import Any, Final

from ..json_text import one_line
from ..protocol.plain_data import MAX_DEPTH, first_flaw
from .errors import ApiError, invalid

_SUSPICIOUS: Final = re.compile(rb"\\u[dD][89a-fA-F]|\0|NaN|Infinity|[0-9]{18}|[0-9][eE]")
_LONGEST_FIELD: Final = 200


def parse_json(text: bytes | str, what: str = "The body") -> Any:
    """``text`` as plain data.

    Raises:
        ApiError: 400, naming the invalid field.
    """
    try:
        value = json.loads(text if isinstance(text, str) else text.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise _not_json(f"{what} is not valid UTF-8.") from None
    except RecursionError:
        raise _not_json(f"{what} is nested too deep.") from None
    except ValueError:
        raise _not_json(f"{what} is not valid JSON.") from None
    flaw = first_flaw(value, finite=True)
    if flaw is None:
        return value
    field = flaw.field[:_LONGEST_FIELD]
    raise invalid(f"{field or what}: {flaw.problem}", field or None)


def check_json(body: bytes) -> None:
    """Raise what ``parse_json`` would; parses only a body that a byte search finds suspicious."""
    if _SUSPICIOUS.search(body) or body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        parse_json(body)
        return
    try:
        body.decode()
    except UnicodeDecodeError:
        raise _not_json("The body is not valid UTF-8.") from None


def compact(value: Any) -> bytes:
    """JSON in one line, in UTF-8."""
    return one_line(value).encode("utf-8", "replace")


def _not_json(message: str) -> ApiError:
    return invalid(message, None, "invalid_json")
