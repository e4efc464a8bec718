"""Looking at queues and workers for everybody who watches: once a second at most, and not while nobody does."""

import asyncio
from time import monotonic
from typing import Final

from ..connection import Connection
from ..overview import Monitor, Overview
from ..protocol import Keys

_FRESH: Final = 0.9
"""Seconds for which a look is shown to others who ask; those who ask each second get a new one."""
_SCAN_EVERY: Final = 5.0
"""Seconds after which workers and queues that are not known yet are looked for."""


class Watch:
    """The state of one namespace."""

    def __init__(self, connection: Connection, keys: Keys) -> None:
        self._monitor = Monitor(connection, keys)
        self._seen: Overview | None = None
        self._looked = 0.0
        self._scanned = -_SCAN_EVERY
        self._turn = asyncio.Lock()

    async def overview(self) -> Overview:
        """How things stand, or stood within the last second. Raises ``Unavailable``."""
        async with self._turn:
            now = monotonic()
            if self._seen is None or now - self._looked >= _FRESH:
                scan = not self._seen or not self._seen.complete or now - self._scanned >= _SCAN_EVERY
                self._seen = await self._monitor.look(scan=scan)
                self._looked = now
                if scan:
                    self._scanned = now
            return self._seen
