"""Directory of live workers: their heartbeats, read at most once a second and cached."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from ...connection import Connection
from ...protocol import Keys

_FRESH: Final = 1.0
"""Seconds that heartbeats are cached."""
_SCAN_EVERY: Final = 15.0
"""Seconds between scans for new workers."""
_PAGE: Final = 2000


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker's heartbeat record."""

    model: str
    name: str
    fields: Mapping[str, str]


class WorkerDirectory:
    """The workers of one namespace.

    New workers are found by a scan of all keys. Known ones are read directly; for a model without a known
    worker the scan is repeated at most once a second.
    """

    def __init__(self, connection: Connection, keys: Keys) -> None:
        self._connection = connection
        self._keys = keys
        self._prefix = f"{keys.namespace}:worker:{{"
        self._workers: dict[str, Worker] = {}
        self._read_at = -_SCAN_EVERY
        self._scanned = -_SCAN_EVERY
        self._lock = asyncio.Lock()

    async def alive(self) -> list[Worker]:
        """Live workers, sorted by model and name. Raises ``Unavailable``."""
        await self._refresh(None)
        return sorted(self._workers.values(), key=lambda worker: (worker.model, worker.name))

    async def serves(self, model: str) -> bool:
        """Whether a worker of ``model`` is alive. Raises ``Unavailable``."""
        await self._refresh(model)
        return self._has(model)

    async def has_queue(self, model: str) -> bool:
        """Whether ``model`` has a queue: it has been served or requested before. Raises ``Unavailable``."""
        queues = self._keys.queues(model)

        async def exist(server: Any) -> int:
            return await server.exists(*queues)

        return await self._connection.call(exist) > 0

    def _has(self, model: str) -> bool:
        return any(worker.model == model for worker in self._workers.values())

    async def _refresh(self, wanted: str | None) -> None:
        async with self._lock:
            now = monotonic()
            if now - self._read_at >= _FRESH:
                await self._read(list(self._workers))
                self._read_at = now
            missing = wanted is not None and not self._has(wanted)
            if now - self._scanned >= (_FRESH if missing else _SCAN_EVERY):
                await self._read(await self._connection.call(self._scan))
                self._scanned = self._read_at = now

    async def _scan(self, server: Any) -> list[str]:
        return [
            key.decode(errors="replace")
            async for key in server.scan_iter(match=f"{self._prefix}*", count=_PAGE)
        ]

    async def _read(self, keys: list[str]) -> None:
        async def read(server: Any) -> list[dict[bytes, bytes]]:
            async with server.pipeline(transaction=False) as pipeline:
                for key in keys:
                    pipeline.hgetall(key)
                return await pipeline.execute()

        records = await self._connection.call(read) if keys else []
        self._workers = {
            key: self._worker(key, fields) for key, fields in zip(keys, records, strict=True) if fields
        }

    def _worker(self, key: str, fields: dict[bytes, bytes]) -> Worker:
        model, _, name = key.removeprefix(self._prefix).rpartition("}:")
        text = {
            field.decode(errors="replace"): value.decode(errors="replace") for field, value in fields.items()
        }
        return Worker(model, name, text)
