"""How many streams are open on this gateway, in all and for each API key."""

import asyncio
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from .api_keys import Caller
from .errors import rate_limited, unavailable


class StreamSlots:
    """Counts open streams, and ends those that can be continued elsewhere when the gateway goes."""

    def __init__(self, limit: int) -> None:
        self.draining = False
        self._limit = limit
        self._open: dict[asyncio.Future[None], bool] = {}
        """Whether each can be continued elsewhere."""
        self._by_key: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def check(self, caller: Caller) -> None:
        """Raise what ``take`` would raise now."""
        if caller.streams is not None and self._by_key[caller.key_id] >= caller.streams:
            message = f"This API key may have {caller.streams} streams open."
            raise rate_limited(message, 1, "too_many_streams")
        if self.draining or len(self._open) >= self._limit:
            raise unavailable("This gateway takes no more streams.", "too_many_streams", 1)

    @contextmanager
    def take(self, caller: Caller, *, resumable: bool) -> Generator[asyncio.Future[None]]:
        """One stream's place; the future is done once the gateway wants the stream to end, which it wants
        only of those that are ``resumable``.

        Raises:
            ApiError: 429 when the key has as many as it may, 503 when the gateway has.
        """
        self.check(caller)
        leave: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open[leave] = resumable
        self._by_key[caller.key_id] += 1
        try:
            yield leave
        finally:
            del self._open[leave]
            self._by_key[caller.key_id] -= 1
            if not self._by_key[caller.key_id]:
                del self._by_key[caller.key_id]

    def drain(self) -> None:
        """Take no more streams, and ask those that can be continued elsewhere to end."""
        self.draining = True
        for leave, resumable in self._open.items():
            if resumable and not leave.done():
                leave.set_result(None)
