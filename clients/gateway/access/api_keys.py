"""API keys and their callers, read from a file that holds only hashes.

The file is TOML, with one table for each key, as ``headrace gateway-key`` prints it::

    [[key]]
    id = "3f9a1c07b2de"
    hash = "9b0c..."       # SHA-256 of the whole key: it is random, so it needs no slow hash
    tenant = "acme"
    rate = 600             # requests a minute; without it, any number
    burst = 60             # requests at once
    priority = "normal"    # the highest that its requests may have
    streams = 100          # open at a time on one gateway
    admin = false          # may see the queues, workers and sequences of all tenants
"""

import hmac
import logging
import re
import tomllib
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from secrets import token_hex, token_urlsafe
from time import monotonic
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...protocol import PRIORITIES, Priority
from ..errors import first_problem
from .tenant_ids import belongs_to

_KEY: Final = re.compile(r"hr_([0-9a-f]{12})_[A-Za-z0-9_-]{43}\Z")
_NO_HASH: Final = "0" * 64
_CHECK_EVERY: Final = 2.0
"""Seconds between checks of the file's modification time."""

_log = logging.getLogger(__name__)

_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of an API key. Without a key file every caller is ``ANYBODY``: tenant None, unlimited."""

    key_id: str
    tenant: str | None
    priority: Priority
    admin: bool
    rate: int | None = None
    """Requests a minute."""
    burst: int = 1
    streams: int | None = None

    def owns(self, owned_id: str) -> bool:
        """Whether this id, of a request, file or batch, was made for this caller's tenant."""
        return self.tenant is None or belongs_to(owned_id, self.tenant)

    def priority_for(self, wanted: Priority | None) -> Priority:
        """``wanted``, lowered to the highest that this caller may have; without one, the caller's own."""
        if wanted is None:
            return "normal" if self.tenant is None else self.priority
        return PRIORITIES[max(PRIORITIES.index(wanted), PRIORITIES.index(self.priority))]


ANYBODY: Final = Caller("none", None, "high", admin=True)


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    id: str = Field(pattern=r"^[0-9a-f]{12}$")
    hash: str = Field(pattern=r"^[0-9a-f]{64}$")
    tenant: str = Field(min_length=1, max_length=256)
    rate: int | None = Field(default=None, ge=1, le=10_000_000)
    burst: int = Field(default=60, ge=1, le=1_000_000)
    priority: Priority = "normal"
    streams: int = Field(default=100, ge=1, le=1_000_000)
    admin: bool = False


class _File(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    key: list[_Entry] = Field(default_factory=list[_Entry])


class KeyRing:
    """The keys of a file, reloaded when it changes; an invalid file leaves the loaded keys in force.

    Raises:
        ValueError: on construction, if the file is invalid, naming the key and the field.
        OSError: on construction, if it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mtime = path.stat().st_mtime_ns
        self._entries = _read(path)
        self._checked = monotonic()

    def caller(self, key: str) -> Caller | None:
        """The caller of ``key``; None if it is not valid. Compared in constant time."""
        self._reload_if_changed()
        match = _KEY.match(key)
        entry = self._entries.get(match[1]) if match else None
        expected = _NO_HASH if entry is None else entry.hash
        given = sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        if not hmac.compare_digest(expected, given) or entry is None:
            return None
        return Caller(
            entry.id, entry.tenant, entry.priority, entry.admin, entry.rate, entry.burst, entry.streams
        )

    def _reload_if_changed(self) -> None:
        now = monotonic()
        if now - self._checked < _CHECK_EVERY:
            return
        self._checked = now
        try:
            mtime = self._path.stat().st_mtime_ns
            if mtime != self._mtime:
                self._mtime = mtime
                self._entries = _read(self._path)
                _log.info("reloaded %d API keys", len(self._entries))
        except (OSError, ValueError) as error:
            _log.error("API key file not reloaded, the loaded keys stay in force: %s", error)


def make_key(tenant: str, **limits: Any) -> tuple[str, str]:
    """A new key, and its table for the key file.

    Raises:
        ValueError: a limit is out of range, naming it.
    """
    key_id = token_hex(6)
    key = f"hr_{key_id}_{token_urlsafe(32)}"
    fields = {"id": key_id, "hash": sha256(key.encode()).hexdigest(), "tenant": tenant, **limits}
    entry = _validated(_Entry, {name: value for name, value in fields.items() if value is not None})
    lines = [f"{name} = {_toml(value)}" for name, value in entry.model_dump(exclude_none=True).items()]
    return key, "\n".join(["[[key]]", *lines, ""])


def _read(path: Path) -> dict[str, _Entry]:
    try:
        entries = _validated(_File, tomllib.loads(path.read_text(encoding="utf-8"))).key
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    by_id = {entry.id: entry for entry in entries}
    if len(by_id) < len(entries):
        raise ValueError(f"{path}: two keys have the same id")
    return by_id


def _validated(model: type[_Model], fields: dict[str, Any]) -> _Model:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None


def _toml(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    escaped = "".join(
        f"\\u{ord(letter):04x}" if letter < " " or letter in '"\\\x7f' else letter for letter in value
    )
    return f'"{escaped}"'
