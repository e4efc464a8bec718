"""A result as a JSON line."""

from dataclasses import asdict
from typing import Any

from ..json_text import one_line
from ..json_values import plain
from ..result import Result


def result_record(result: Result) -> dict[str, Any]:
    """The result's fields; those that say nothing (None) are left out."""
    record = {name: value for name, value in asdict(result).items() if value is not None}
    record["timings"] = {name: value for name, value in record["timings"].items() if value is not None}
    return record


def as_line(record: dict[str, Any]) -> str:
    """JSON; what it lacks is replaced, see ``plain``."""
    return one_line(plain(record)) + "\n"
