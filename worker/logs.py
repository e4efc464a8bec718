"""Log lines: for people, or one JSON object each. Never a prompt, never a password."""

import logging
import sys
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from ..clients.json_text import one_line
from .config import LogFormat, LogLevel

_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class TextFormatter(logging.Formatter):
    """``16:20:01.123 INFO  broker  message``, in local time."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3]
        line = f"{time} {record.levelname:<7} {_package(record.name):<9} {record.getMessage()}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """Time (RFC 3339, UTC), level, logger, message, and whatever ``extra`` the record has."""

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


def configure(log_format: LogFormat, level: LogLevel) -> None:
    """Send Headrace's log lines to standard error in ``log_format``; other libraries' from warning up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("headrace").setLevel(level.upper())


def about(log: logging.Logger, request_id: str | None) -> "logging.LoggerAdapter[logging.Logger]":
    """Writes lines about one request: its id leads the message and is ``request`` in JSON.

    None is for an entry without a readable one.
    """
    return _AboutRequest(log, {"request": request_id})


class _AboutRequest(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[str, MutableMapping[str, Any]]:
        extra = {**(self.extra or {}), **kwargs.get("extra", {})}
        return f"request {extra['request']}: {msg}", {**kwargs, "extra": extra}


def without_password(url: str) -> str:
    """A Redis URL that may be shown."""
    parts = urlsplit(url)
    query = "&".join(
        field if "password" not in field.partition("=")[0] else f"{field.partition('=')[0]}=***"
        for field in parts.query.split("&")
    )
    host = parts.netloc.rpartition("@")[2]
    shown = parts.netloc if parts.password is None else f"{parts.username or ''}:***@{host}"
    return urlunsplit(parts._replace(netloc=shown, query=query))


def _package(logger: str) -> str:
    # headrace.worker.broker.intake -> broker
    return logger.removeprefix("headrace.").removeprefix("worker.").partition(".")[0]
