"""Reading a request's event log from where a subscriber stands."""

import logging
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, cast

import msgpack

from .connection import Connection
from .errors import EventsLost, Unavailable, UnknownRequest
from .protocol import Event, EventError, Keys, decode_event
from .scripts import READ
from .transcript import Transcript

PAGE: Final = 500
"""Log entries read at a time: some 50 KB of a running request, less of them once it has ended."""

_BEGINNING: Final = b"0-0"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Page:
    state: dict[str, str]
    entries: list[tuple[bytes, bytes]]
    last: tuple[bytes, bytes] | None

    @property
    def is_full(self) -> bool:
        return len(self.entries) == PAGE


class EventLog:
    """The log of one request, with a cursor. ``state`` is the request's state hash when it was last read."""

    def __init__(self, connection: Connection, keys: Keys, request_id: str) -> None:
        self.state: dict[str, str] = {}
        self._connection = connection
        self.request_id = request_id
        self._keys = [keys.request(request_id), keys.events(request_id)]
        self._control = keys.control
        self._cursor = _BEGINNING

    @property
    def is_nowhere(self) -> bool:
        """Whether the state, when last read, said that the request is queued but has no queue entry."""
        return self.state.get("status") == "queued" and not self.state.get("entry")

    async def ask_for_entry(self) -> None:
        """Have workers see whether the request's entry is on a queue still; the state will say if it is not.

        Nothing comes of it where no worker hears it, or Redis is away: ask again.
        """
        model = self.state.get("model")
        if model and self.state.get("status") in ("queued", "running"):
            notice = cast(bytes, msgpack.packb({"missing": self.request_id}))
            with suppress(Unavailable, ValueError):
                await self._connection.publish(self._control(model), notice)

    async def read_new(self, transcript: Transcript) -> AsyncGenerator[Event]:
        """What the log adds to ``transcript``.

        The last entry of all is looked at each time, whatever the cursor says: a log that was rewritten may
        have ids that lie behind the cursor. It then shows as a gap, and the log is read from its beginning.

        Raises:
            UnknownRequest: there is neither state nor log.
            EventsLost: the request has ended, and the log cannot say how.
            Unavailable: see ``Connection.call``.
        """
        reread = False
        while True:
            page = await self._read_page()
            self.state = page.state
            if not page.state and page.last is None:
                raise UnknownRequest(self.request_id)
            gap = False
            for entry_id, event in self._events(page):
                if gap := transcript.lacks_before(event):
                    break
                piece = transcript.take(event)
                self._cursor = max(self._cursor, entry_id, key=_position)
                if piece is not None:
                    yield piece
            if transcript.done:
                return
            if gap and not reread:
                reread = True
                self._cursor = _BEGINNING
            elif page.is_full and not gap:
                self._cursor = page.entries[-1][0]
            elif page.state.get("status") == "finished":
                raise UnknownRequest(self.request_id) if page.last is None else EventsLost(self.request_id)
            else:
                return

    def _events(self, page: _Page) -> Iterator[tuple[bytes, Event]]:
        rest = [page.last] if page.last is not None and not page.is_full else []
        for entry_id, data in page.entries + rest:
            event = decode_known(data, self.request_id)
            if event is not None:
                yield entry_id, event

    async def _read_page(self) -> _Page:
        state, entries, last = await self._connection.call(
            lambda server: READ.run(server, self._keys, [self._cursor, PAGE])
        )
        return _Page(
            state={
                name.decode(errors="replace"): value.decode(errors="replace") for name, value in _pairs(state)
            },
            entries=[_entry(item) for item in entries],
            last=_entry(last[0]) if last else None,
        )


def decode_known(data: bytes, request_id: str) -> Event | None:
    """The event, or None for what this version does not know or cannot read: it is passed over."""
    try:
        return decode_event(data)
    except EventError as error:
        _log.warning("request %s: %s", request_id, error)
        return None


def _entry(item: tuple[bytes, list[bytes]]) -> tuple[bytes, bytes]:
    entry_id, fields = item
    return entry_id, dict(_pairs(fields)).get(b"e", b"")


def _pairs(flat: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    items = iter(flat)
    return zip(items, items, strict=True)


def _position(entry_id: bytes) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.partition(b"-")
    return int(milliseconds), int(sequence)
