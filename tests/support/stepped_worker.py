"""A worker with nothing in the background: each call is one step, on a connection that fails on demand."""

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import redis
from counting_worker import MODEL, CountingEngine, CountingWorker

from headrace.clients.cluster import Call
from headrace.worker.broker import Broker, BrokerSettings
from headrace.worker.broker.connection import Connection
from headrace.worker.broker.counters import Counters

LEASE_MS = 3_600_000
"""Ends only where a test says so."""


class SteppedConnection(Connection):
    """Fails the next round trip: before it is sent, or after it was executed.

    With ``executed`` each call is sent alone, and that called after it.
    """

    fault: str | None = None
    executed: Callable[[], None] | None = None

    async def batch(self, calls: Sequence[Call]) -> list[Any]:
        fault, self.fault = self.fault, None
        if fault == "request lost":
            raise redis.ConnectionError(fault)
        replies = await super().batch(calls)
        if fault == "reply lost":
            raise redis.ConnectionError(fault)
        return replies

    async def _execute(self, calls: Sequence[Call]) -> list[Any]:
        if self.executed is None:
            return await super()._execute(calls)
        replies: list[Any] = []
        for call in calls:
            replies += await super()._execute([call])
            self.executed()
        return replies


class SteppedWorker:
    """One worker from start to crash, stepped by hand through its broker's parts.

    A token says its position, and with ``epoch_weight`` the epoch of the claim that made it.
    """

    def __init__(self, url: str, name: str, *, epoch_weight: int = 0) -> None:
        configuration = BrokerSettings(
            url=url, model=MODEL, name=name, lease=LEASE_MS / 1000, max_attempts=10**6, request_ttl=3600
        )
        self.connection = SteppedConnection(url, Counters(), timeout=20)
        self.broker = Broker(configuration, self.connection, record=dict, progressing=lambda: True)
        self.engine = CountingEngine(epoch_weight=epoch_weight, step_seconds=0.0)
        self._worker = CountingWorker(self.broker, self.engine)

    async def pull(self, fault: str | None = None) -> None:
        self.connection.fault = fault
        self.broker.intake.offer((1, 1, 1), waiting=len(self.engine.running))
        self.broker.intake.reclaim_now()
        await self.broker.intake.pull()

    async def claim(self, fault: str | None = None) -> None:
        self.connection.fault = fault
        await self.broker.intake.claim()

    async def compute(self) -> None:
        while self.broker.intake.ready:
            with anyio.move_on_after(0.2):  # the last one may have ended while it waited
                await self._worker.receive()
        await self._worker.step()

    async def flush(self, fault: str | None = None) -> None:
        self.connection.fault = fault
        await self.broker.outbox.flush()

    async def renew(self, fault: str | None = None) -> None:
        self.connection.fault = fault
        await self.broker.leases.renew()
