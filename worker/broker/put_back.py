"""Entries that somebody else took off the queue: put back by the worker that runs the request.

Without an entry no worker could reclaim the request if this one died.
"""

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ...clients.protocol import GROUP
from ..logs import about
from .connection import Connection
from .entries import OwnedEntries, OwnedEntry
from .messages import queue_of
from .scripts import PUT_BACK, REPLACE
from .settings import BrokerSettings

log = logging.getLogger(__name__)


async def put_back(
    settings: BrokerSettings,
    connection: Connection,
    owned_entries: OwnedEntries,
    consumer: str,
    missing: Iterable[OwnedEntry],
) -> None:
    """Put the entries of running requests back; nothing may be taken from the queue meanwhile.

    A claim that is over is left alone: it will be told so. An entry that waits behind others may come to
    another worker, which then goes on with the request. Raises ``redis.RedisError``; call it again with what
    is missing then.
    """
    for owned in missing:
        if owned.body is None or owned.request_id is None or owned.ended or not owned_entries.has(owned):
            continue
        state = [settings.keys.request(owned.request_id)]
        entry = owned.entry
        claim = [owned.epoch, consumer, f"{entry.stream}/{entry.id}"]
        if not await connection.run(REPLACE, state, claim):
            continue
        arguments = [GROUP, consumer, entry.id, owned.body]
        added: list[Any] | None = await connection.run(PUT_BACK, [queue_of(settings, owned)], arguments)
        if added is None:
            continue
        entry_id, deliveries = added[0].decode(), added[1]
        new = [f"{entry.stream}/{entry_id}", entry_id, deliveries]
        if await connection.run(REPLACE, state, [*claim, *new]) and owned_entries.has(owned):
            owned_entries.move(owned, replace(entry, id=entry_id))
            about(log, owned.request_id).warning("queue entry deleted by someone else; put back")
            connection.counters.put_back += 1
