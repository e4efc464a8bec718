"""Slots of open streams: limits for the gateway and for each API key."""

import asyncio
from collections import Counter

from ..access.api_keys import Caller
from ..errors import rate_limited, unavailable


class StreamSlots:
    """Counts open streams, and ends those that can be resumed at another gateway when this one drains."""

    def __init__(self, limit: int) -> None:
        self.draining = False
        self._limit = limit
        self._open: dict[asyncio.Future[None], bool] = {}
        """Whether each is resumable."""
        self._by_key: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def check(self, caller: Caller) -> None:
        """Raise what ``take`` would raise."""
        if caller.streams is not None and self._by_key[caller.key_id] >= caller.streams:
            message = f"This API key may have {caller.streams} streams open."
            raise rate_limited(message, 1, "too_many_streams")
        if self.draining or len(self._open) >= self._limit:
            raise unavailable("This gateway accepts no more streams.", "too_many_streams", 1)

    def take(self, caller: Caller, *, resumable: bool) -> "StreamSlot":
        """A slot for one stream, to be closed.

        Raises:
            ApiError: 429 at the API key's limit, 503 at the gateway's.
        """
        self.check(caller)
        return StreamSlot(self._open, self._by_key, caller.key_id, resumable=resumable)

    def drain(self) -> None:
        """Refuse new streams, and ask resumable ones to end."""
        self.draining = True
        for leave, resumable in self._open.items():
            if resumable and not leave.done():
                leave.set_result(None)


class StreamSlot:
    """An open stream's slot: a context manager whose future is done when a ``resumable`` stream should end
    because the gateway drains."""

    def __init__(
        self, opened: dict[asyncio.Future[None], bool], by_key: Counter[str], key_id: str, *, resumable: bool
    ) -> None:
        self.leave: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open = opened
        self._by_key = by_key
        self._key_id = key_id
        opened[self.leave] = resumable
        by_key[key_id] += 1

    def close(self) -> None:
        """Release the slot; idempotent."""
        if self._open.pop(self.leave, None) is not None:
            self._by_key[self._key_id] -= 1
            if not self._by_key[self._key_id]:
                del self._by_key[self._key_id]

    def __enter__(self) -> asyncio.Future[None]:
        return self.leave

    def __exit__(self, *_: object) -> None:
        self.close()
