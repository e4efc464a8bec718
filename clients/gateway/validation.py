"""A body that is not what the schema says: which field, and what it may be."""

from collections.abc import Sequence
from typing import Any

from .errors import ApiError, invalid


def validation_error(problems: Sequence[Any]) -> ApiError:
    """The first field that is wrong. Alternatives that all failed are told together."""
    first = list(problems[0]["loc"])
    same = [problem for problem in problems if list(problem["loc"])[:2] == first[:2]]
    shared = first
    for problem in same:
        location = list(problem["loc"])
        shared = [part for part, other in zip(shared, location, strict=False) if part == other]
    if problems[0]["type"] == "json_invalid":
        return invalid("The body is not valid JSON.", None, "invalid_json")
    param = ".".join(str(part) for part in shared[1:]) or None
    param = None if param is None else param[:200]
    wishes = list(dict.fromkeys(problem["msg"].removeprefix("Value error, ") for problem in same))
    message = f"{param or shared[0]}: {', or '.join(wishes)}"
    code = "missing_required_parameter" if problems[0]["type"] == "missing" else "invalid_value"
    return invalid(message[:500], param, code)
