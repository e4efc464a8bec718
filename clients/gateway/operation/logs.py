"""Log format: text, or one JSON object a line. No line contains a prompt or a key."""

import logging
import sys
from datetime import UTC, datetime
from typing import Literal

from ...json_text import one_line

_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}


class JsonFormatter(logging.Formatter):
    """Time (RFC 3339, UTC), level, logger, message, and the record's ``extra`` fields."""

    def format(self, record: logging.LogRecord) -> str:
        body: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        body |= {name: value for name, value in record.__dict__.items() if name not in _PLAIN}
        if record.exc_info:
            body["exception"] = self.formatException(record.exc_info)
        return one_line(body, default=str)


def configure(log_format: Literal["text", "json"]) -> None:
    """Log to standard error in ``log_format``; other libraries' records from warning up."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
    handler.setFormatter(JsonFormatter() if log_format == "json" else text)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("headrace").setLevel(logging.INFO)
