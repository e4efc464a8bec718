"""Hand-over of single requests to a worker with free capacity, and the notices that find one."""

from collections import deque
from typing import cast

import anyio
import msgpack

from .connection import FAILURES, Connection
from .drain import give_back
from .entries import OwnedEntries, OwnedEntry
from .lease import Leases
from .outbox import Outbox
from .settings import BrokerSettings

_MOST_NOTICES = 64


class Handover:
    """Says to all workers of the model what one of them asks or offers; ``run`` does what is asked for.

    A notice may be lost: it is asked again. A request is given back once some worker has answered.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        connection: Connection,
        owned_entries: OwnedEntries,
        consumer: str,
        outbox: Outbox,
        leases: Leases,
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._owned = owned_entries
        self._consumer = consumer
        self._outbox = outbox
        self._leases = leases
        self._notices: deque[bytes] = deque(maxlen=_MOST_NOTICES)
        self._leaving: list[OwnedEntry] = []
        self._wake = anyio.Event()

    def probe(self, request_id: str, num_tokens: int) -> None:
        """Who could admit this request, of ``num_tokens`` of prompt and output?"""
        self._say({"displaced": request_id, "tokens": num_tokens})

    def invite(self, request_id: str) -> None:
        """This worker could admit it."""
        self._say({"room_for": request_id})

    def hand_over(self, request_id: str, epoch: int) -> None:
        """Give a claim back that the engine has dropped, for another worker to go on with."""
        owned = self._owned.of(request_id, epoch)
        if owned is not None and not owned.ended:
            owned.leaving = True
            self._leaving.append(owned)
            self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        channel = self._settings.keys.control(self._settings.model)
        while True:
            if not (self._notices or self._leaving):
                await self._wake.wait()
            self._wake = anyio.Event()
            while self._notices:
                notice = self._notices.popleft()
                try:
                    await self._connection.publish(channel, notice)
                except FAILURES as error:
                    self._connection.report("finding another worker for a request", error)
                    self._notices.clear()
            if leaving := self._leaving:
                self._leaving = []
                await give_back(
                    self._settings, self._connection, self._consumer, self._outbox, self._leases, leaving
                )

    def _say(self, notice: dict[str, str | int]) -> None:
        self._notices.append(cast(bytes, msgpack.packb(notice)))
        self._wake.set()
