"""JSON text that is one line to every reader."""

import json
from collections.abc import Callable
from typing import Any, Final

_LINE_BREAKS: Final = {"\u0085": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""Those of Unicode that JSON lets stand in a string: ``str.splitlines`` and its like break lines there."""


def one_line(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """``value`` as JSON without spaces and without any line break, else with Unicode as it is.

    ``default``: see ``json.dumps``. Raises as it does.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=default)
    if text.isascii():
        return text
    for character, escaped in _LINE_BREAKS.items():
        text = text.replace(character, escaped)
    return text
