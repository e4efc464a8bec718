"""Redis's clock, for timestamps: the host's clock may differ by hours or be set at any time."""

from time import monotonic
from typing import Final

from ..connection import Connection

_FRESH: Final = 1.0
"""Seconds between reads of Redis's TIME; in between, the host's monotonic clock is added."""


class RedisClock:
    """A gateway's only source of timestamps. Raises ``Unavailable``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._read_at = -_FRESH
        self._redis_ms = 0

    async def now_ms(self) -> int:
        """Unix milliseconds."""
        passed = monotonic() - self._read_at
        if passed < _FRESH:
            return self._redis_ms + int(passed * 1000)
        self._redis_ms = await self._connection.now_ms()
        self._read_at = monotonic()
        return self._redis_ms

    async def now(self) -> int:
        """Unix seconds."""
        return await self.now_ms() // 1000
