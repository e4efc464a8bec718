"""Leaving: what a worker cannot finish goes back so that others can take it at once."""

import logging
from typing import cast

import msgpack

from .connection import Connection
from .entries import Held, Holdings
from .lease import Leases
from .outbox import Outbox
from .scripts import RELEASE
from .settings import BrokerSettings, milliseconds

log = logging.getLogger(__name__)


async def hand_back(
    settings: BrokerSettings,
    connection: Connection,
    holdings: Holdings,
    consumer: str,
    outbox: Outbox,
    leases: Leases,
) -> int:
    """Give back every entry held, and this worker's record; returns how many requests were under way.

    Output that the outbox has not delivered by now is computed again by whoever goes on, so flush before.
    A request handed back is not charged an attempt. Repeats until Redis lets it succeed.
    """
    entries = list(holdings.entries.values())
    released = [held for held in entries if held.request_id is not None and not held.ended]
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
    entries: list[Held],
    *,
    leaving: bool = False,
) -> None:
    """Give back these entries; with ``leaving`` this worker's record, too. Repeats until it succeeds."""
    keys = settings.keys
    calls = [
        RELEASE.call(
            [keys.request(held.request_id), keys.events(held.request_id)],
            [held.epoch, consumer, milliseconds(settings.request_ttl)],
        )
        for held in entries
        if held.request_id is not None and not held.ended
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
    for held in entries:
        outbox.forget(held)
    await connection.retrying("handing entries back", leases.give_back)
    await connection.retrying("announcing entries handed back", announce)
    connection.counters.handed_back += len(calls)
