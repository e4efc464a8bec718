"""Requests whose followers wait in silence: have they an entry on a queue still?

Clients may not read queues, and a request whose entry somebody deleted would keep them waiting. They ask, and
what is gone for certain is noted in the request's state.
"""

import logging
import re
from typing import Any, Final

import anyio

from ..logs import about
from .connection import FAILURES, Connection
from .entries import OwnedEntries
from .scripts import DISOWN, ON_QUEUE
from .settings import WORKER_NAME, BrokerSettings

log = logging.getLogger(__name__)

_MOST: Final = 256
"""Requests asked for that are looked for together; who asks beyond them asks again."""
_ENTRY: Final = re.compile(r"[0-9]{1,19}-[0-9]{1,19}\Z")


class Search:
    """Looks for the entries of requests that were asked for, every third of a lease."""

    def __init__(self, settings: BrokerSettings, connection: Connection, owned_entries: OwnedEntries) -> None:
        self._settings = settings
        self._connection = connection
        self._owned = owned_entries
        self._queues = settings.keys.queues(settings.model)
        self._asked: set[str] = set()

    def probe(self, request_id: str) -> None:
        """Look for the entry of this request soon, unless it is in this worker's hands."""
        if len(self._asked) < _MOST and request_id not in self._owned.requests:
            self._asked.add(request_id)

    async def run(self) -> None:
        """Look until cancelled. What fails is left to whoever asks again."""
        while True:
            await anyio.sleep(self._settings.lease / 3)
            asked, self._asked = self._asked, set()
            for request_id in asked:
                try:
                    await self._look_for(request_id)
                except FAILURES as error:
                    self._connection.report("looking for entries", error)
                    break

    async def _look_for(self, request_id: str) -> None:
        try:
            key = self._settings.keys.request(request_id)
        except ValueError:
            return
        fields = ("status", "epoch", "claimed", "entry", "worker")
        reply: list[bytes | None] = await self._connection.command("HMGET", key, *fields)
        status, epoch, claimed, entry, worker = ((field or b"").decode(errors="replace") for field in reply)
        if status not in ("queued", "running") or not (claimed or entry):
            return
        if status == "running" and await self._is_alive(worker):
            return  # it puts back what it misses
        ids = {claimed.partition("/")[2], entry} - {""}
        if not all(_ENTRY.match(each) for each in ids):
            return
        if await self._connection.run(ON_QUEUE, self._queues, list(ids)):
            return
        if await self._connection.run(DISOWN, [key], [status, epoch, claimed, entry]):
            about(log, request_id).warning(
                "queue entry deleted by someone else; reported to its followers as unknown"
            )

    async def _is_alive(self, consumer: str) -> bool:
        """Whether the consumer's worker has renewed its leases of late; as far as the name can tell."""
        name = consumer.rpartition(".")[0]
        if not WORKER_NAME.match(name):
            return False
        worker: Any = self._settings.keys.worker(self._settings.model, name)
        return bool(await self._connection.command("EXISTS", worker))
