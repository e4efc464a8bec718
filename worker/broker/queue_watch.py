"""The queue as seen from a worker, for its metrics: how many wait and since when."""

from collections.abc import Sequence
from typing import Final

import anyio

from ...clients.protocol import GROUP, LANES
from ...clients.queue_status import QueueStatus, queue_statuses
from .connection import FAILURES, Connection
from .scripts import DEPTH
from .settings import BrokerSettings

_EVERY: Final = 5.0
"""Seconds."""


class QueueWatch:
    """Looks at a model's queues every five seconds. ``latest`` is empty while Redis does not answer."""

    def __init__(self, settings: BrokerSettings, connection: Connection) -> None:
        self.latest: Sequence[QueueStatus] = ()
        self._model = settings.model
        self._keys = settings.keys.queues(settings.model)
        self._connection = connection

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                reply = await self._connection.run(DEPTH, self._keys, [GROUP, LANES])
                self.latest = queue_statuses(self._model, reply)
            except FAILURES:
                self.latest = ()
            await anyio.sleep(_EVERY)
