"""What an operator looks at: queues and workers, now."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import redis.asyncio

from .connection import Connection
from .protocol import GROUP, LANES, Keys
from .protocol.keys import MODEL_NAME
from .queue_status import QueueStatus, queue_statuses
from .scripts import DEPTH

_KEYS_PER_SCAN: Final = 1000
_SCANS_PER_LOOK: Final = 100
"""So one look passes over some hundred thousand keys at most; the next goes on from there."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """What a worker's last heartbeat said. ``age`` is that of the heartbeat, ``uptime`` its own; seconds."""

    model: str
    name: str
    version: str
    running: int
    waiting: int
    blocks_total: int
    blocks_free: int
    tokens_per_second: float
    age: float | None
    uptime: float | None

    @property
    def cache_use(self) -> float:
        """Share of the KV cache's blocks that are taken."""
        return 1 - self.blocks_free / self.blocks_total if self.blocks_total else 0.0


@dataclass(frozen=True, slots=True)
class Overview:
    """``complete`` is False while not all of the server's keys have been looked through."""

    queues: list[QueueStatus]
    workers: list[WorkerStatus]
    complete: bool


class Monitor:
    """Finds queues and workers by scanning, in bounded steps, and reads how they stand.

    ``model`` limits what is shown to one model; ``ValueError`` if it cannot be a model's name.
    """

    def __init__(self, connection: Connection, keys: Keys, model: str | None = None) -> None:
        if model is not None:
            keys.service(model)
        self._connection = connection
        self._model = model
        self._keys = keys
        # No namespace holds a character that is special in a pattern.
        self._pattern = f"{keys.namespace}:*:{{*}}:*"
        self._name = re.compile(re.escape(keys.namespace) + r":(worker|queue):\{([^{}]+)\}:(.+)\Z", re.DOTALL)
        self._node = 0
        self._cursor = 0
        self._complete = False
        self._queued_models: set[str] = set()
        self._workers: set[tuple[str, str]] = set()

    async def look(self) -> Overview:
        """How things stand now. Raises ``Unavailable``."""
        await self._scan()
        workers = await self._read_workers()
        models = self._queued_models | {worker.model for worker in workers}
        if self._model is not None:
            models.add(self._model)
        queues = [status for model in sorted(models) for status in await self._read_queues(model)]
        return Overview(queues, workers, self._complete)

    async def _scan(self) -> None:
        nodes = await self._connection.masters()

        async def step(_: redis.asyncio.Redis) -> tuple[int, list[bytes]]:
            node = nodes[self._node % len(nodes)]
            cursor, names = await node.scan(self._cursor, match=self._pattern, count=_KEYS_PER_SCAN)
            return cursor, [name for name in names if isinstance(name, bytes)]

        for _ in range(_SCANS_PER_LOOK):
            self._cursor, names = await self._connection.call(step)
            for name in names:
                self._note(name.decode(errors="replace"))
            if self._cursor == 0:
                self._node = (self._node + 1) % len(nodes)
                if self._node == 0:
                    self._complete = True
                    return

    def _note(self, name: str) -> None:
        match = self._name.match(name)
        if match is None or (self._model is not None and match[2] != self._model):
            return
        if not MODEL_NAME.match(match[2]):
            return
        if match[1] == "worker":
            self._workers.add((match[2], match[3]))
        else:
            self._queued_models.add(match[2])

    async def _read_workers(self) -> list[WorkerStatus]:
        names = sorted(self._workers)

        async def read(server: redis.asyncio.Redis) -> list[Any]:
            async with server.pipeline(transaction=False) as pipeline:
                for model, name in names:
                    pipeline.hgetall(self._keys.worker(model, name))
                return await pipeline.execute()

        now = await self._connection.now_ms()
        records = await self._connection.call(read)
        workers: list[WorkerStatus] = []
        for (model, name), fields in zip(names, records, strict=True):
            if fields:
                record = {
                    field.decode(errors="replace"): value.decode(errors="replace")
                    for field, value in fields.items()
                }
                workers.append(_worker_status(model, name, record, now))
            else:
                self._workers.discard((model, name))
        return workers

    async def _read_queues(self, model: str) -> list[QueueStatus]:
        keys = self._keys.queues(model)
        reply = await self._connection.call(lambda server: DEPTH.run(server, keys, [GROUP, LANES]))
        return queue_statuses(model, reply)


def _worker_status(model: str, name: str, record: Mapping[str, str], now: int) -> WorkerStatus:
    return WorkerStatus(
        model=model,
        name=name,
        version=record.get("version", ""),
        running=int(_number(record.get("running")) or 0),
        waiting=int(_number(record.get("waiting")) or 0),
        blocks_total=int(_number(record.get("blocks_total")) or 0),
        blocks_free=int(_number(record.get("blocks_free")) or 0),
        tokens_per_second=float(_number(record.get("tokens_per_second")) or 0),
        age=_seconds_since(_number(record.get("updated")), now),
        uptime=_seconds_since(_number(record.get("started")), now),
    )


def _seconds_since(moment: float | None, now: int) -> float | None:
    return None if moment is None else max(0.0, (now - moment) / 1000)


def _number(text: str | None) -> float | None:
    if text is None or not re.fullmatch(r"\d{1,18}(\.\d{1,18})?", text):
        return None
    return float(text)
