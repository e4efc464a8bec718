"""A worker's record between heartbeats: what is under way changes faster than leases run out."""

from collections.abc import Callable

import anyio

from .connection import FAILURES, Connection
from .lease import Record
from .scripts import PRESENCE
from .settings import BrokerSettings

_EVERY = 1.0
"""Seconds."""


class Presence:
    """Writes the record's fields once a second, if they have changed and while ``progressing`` says yes.

    Nothing depends on it, so a failure is left to the heartbeat to report and to the next second to repair.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        connection: Connection,
        *,
        record: Callable[[], Record],
        progressing: Callable[[], bool],
    ) -> None:
        self._key = settings.keys.worker(settings.model, settings.name)
        self._connection = connection
        self._record = record
        self._progressing = progressing
        self._written: Record = {}

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await anyio.sleep(_EVERY)
            record = self._record() if self._progressing() else {}
            if record and record != self._written:
                fields = [part for field in record.items() for part in field]
                try:
                    await self._connection.run(PRESENCE, [self._key], fields)
                except FAILURES:
                    continue
                self._written = record
