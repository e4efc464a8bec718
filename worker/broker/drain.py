"""Leaving: what a worker cannot finish goes back so that others can take it at once."""

import logging
from typing import cast

import msgpack

from .connection import Connection
from .entries import OwnedEntries, OwnedEntry
from .lease import Leases
from .outbox import Outbox
from .scripts import RELEASE
from .settings import BrokerSettings, milliseconds

log = logging.getLogger(__name__)


async def hand_back(
    settings: BrokerSettings,
    connection: Connection,
    owned_entries: OwnedEntries,
    consumer: str,
    outbox: Outbox,
    leases: Leases,
) -> int:
    """Give back every owned entry, and this worker's record; returns how many requests were under way.

    Output that the outbox has not delivered by now is computed again by whoever goes on, so flush before.
    A request handed back is not charged an attempt. Repeats until Redis lets it succeed.
    """
    entries = list(owned_entries.entries.values())
    released = [owned for owned in entries if owned.request_id is not None and not owned.ended]
    await give_back(settings, connection, consumer, outbox, leases, entries, leaving=True)
    if entries:
        log.info("handed back %d requests", len(entries))
    return len(released)


async def give_back(
    settings: BrokerSettings,
    connection: Connection,
    consumer: str,
    outbox: Outbox,
    leases: Leases,
    entries: list[OwnedEntry],
    *,
    leaving: bool = False,
) -> None:
    """Give back these entries; with ``leaving`` this worker's record, too. Repeats until it succeeds."""
    keys = settings.keys
    calls = [
        RELEASE.call(
            [keys.request(owned.request_id), keys.events(owned.request_id)],
            [owned.epoch, consumer, milliseconds(settings.request_ttl)],
        )
        for owned in entries
        if owned.request_id is not None and not owned.ended
    ]

    async def release() -> None:
        failed = [reply for reply in await connection.batch(calls) if isinstance(reply, Exception)]
        if failed:
            raise failed[0]

    async def announce() -> None:
        if leaving:
            await connection.command("DEL", keys.worker(settings.model, settings.name))
        notice = cast(bytes, msgpack.packb({"released": len(entries), "by": consumer}))
        await connection.publish(keys.control(settings.model), notice)

    if calls:
        await connection.retrying("handing requests back", release)
    for owned in entries:
        outbox.forget(owned)
    await connection.retrying("handing entries back", leases.give_back)
    await connection.retrying("announcing entries handed back", announce)
    connection.counters.handed_back += len(calls)
