"""New entries of the queue: taking them, and being woken by them."""

from collections.abc import Callable, Sequence
from typing import Any

import anyio

from ...clients.protocol import GROUP
from ..ageing import Ageing
from .connection import FAILURES, Backoff, Connection
from .entries import Entry, OwnedEntries, OwnedEntry
from .scripts import TAKE
from .settings import SERVICE_TTL, BrokerSettings, milliseconds


class Arrivals:
    """Takes entries for one consumer, in one script over all queues of a model.

    The queue is not polled: a take that finds nothing leaves behind where each stream ended, and a blocking
    read waits for the first entry after that, then calls ``wake``. It reads without the group, so it takes
    nothing; the next take decides who gets what.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        connection: Connection,
        owned_entries: OwnedEntries,
        consumer: str,
        *,
        wake: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._owned = owned_entries
        self._queues = settings.keys.queues(settings.model)
        self._keys = [*self._queues, settings.keys.service(settings.model)]
        self._consumer = consumer
        ageing = Ageing.of(settings.ageing)
        self._ageing = [ageing.ms, *ageing.delays]
        self._wake = wake
        self._after: dict[str, bytes] = {}
        self._armed = anyio.Event()
        self._watched: frozenset[str] = frozenset()
        self._watching = anyio.CancelScope()

    async def take(self, capacity: Sequence[int]) -> list[OwnedEntry]:
        """At most ``capacity`` entries (by class, see ``Intake.offer``), the most urgent first.

        Finding none arms the watch. Raises ``redis.RedisError``; what was taken is then untracked, and the
        heartbeat finds it.
        """
        arguments = [GROUP, self._consumer, milliseconds(SERVICE_TTL), *capacity, *self._ageing]
        reply: list[Any] = await self._connection.run(TAKE, self._keys, arguments)
        found, after = reply
        taken: list[OwnedEntry] = []
        for stream, entry_id, body, charge in found:
            owned = self._owned.take(Entry(stream - 1, entry_id.decode(), 1, charge), body)
            if owned is not None:
                self._connection.counters.taken += 1
                taken.append(owned)
        if not taken:
            self._arm(
                {queue: entry_id for queue, entry_id in zip(self._queues, after, strict=True) if entry_id}
            )
        return taken

    async def watch(self) -> None:
        """Wake whoever takes, until cancelled: at each arrival, and after a while without one."""
        backoff = Backoff()
        block_ms = milliseconds(self._connection.longest_block)
        while True:
            await self._armed.wait()
            self._armed = anyio.Event()
            after = self._after
            self._watched = frozenset(after)
            with anyio.CancelScope() as self._watching:
                call = ("XREAD", "BLOCK", block_ms, "COUNT", 1, "STREAMS", *after, *after.values())
                try:
                    await self._connection.block(self._queues[0], *call)
                    backoff.reset()
                except FAILURES as error:
                    self._connection.report("waiting for requests", error)
                    await backoff.sleep()
                self._wake()
            self._watched = frozenset()

    def _arm(self, after: dict[str, bytes]) -> None:
        self._after = after
        if after:
            self._armed.set()
        if self._watched and not self._watched.issuperset(after):
            self._watching.cancel()  # it waits for less than it now should
