"""Redis's clock, for moments: the host's may be hours away from it, or be set at any time."""

from time import monotonic
from typing import Final

from ..connection import Connection

_FRESH: Final = 1.0
"""Seconds after which it is asked again; in between the host counts on."""


class RedisClock:
    """One for a gateway. Raises ``Unavailable``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._asked = -_FRESH
        self._told = 0

    async def now_ms(self) -> int:
        """Unix milliseconds."""
        passed = monotonic() - self._asked
        if passed < _FRESH:
            return self._told + int(passed * 1000)
        self._told = await self._connection.now_ms()
        self._asked = monotonic()
        return self._told

    async def now(self) -> int:
        """Unix seconds."""
        return await self.now_ms() // 1000
