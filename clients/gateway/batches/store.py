"""Store of batches: their metadata and status in Redis."""

import json
import logging
from dataclasses import dataclass
from typing import Any, Final, Literal

from ...connection import Connection
from ...json_values import plain
from ..access.api_keys import Caller
from ..access.tenant_ids import id_for, new_id
from ..errors import ApiError, not_found
from ..redis_clock import RedisClock
from ..redis_keys import GatewayKeys
from ..scripts import ADVANCE
from ..settings import GatewaySettings
from .files import PREFIX as FILE_PREFIX
from .files import Files, Results, StoredFile

PREFIX: Final = "batch_"

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})
_PREDECESSORS: Final[dict[BatchStatus, tuple[BatchStatus, ...]]] = {
    "in_progress": ("validating",),
    "cancelling": ("validating", "in_progress"),
    "finalizing": ("in_progress",),
    "completed": ("finalizing",),
    "expired": ("finalizing",),
    "failed": ("finalizing",),
    "cancelled": ("cancelling",),
}
"""The statuses that each may follow."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Batch:
    """Times are in Unix seconds by Redis's clock; ``times`` says when each status was reached."""

    id: str
    tenant: str | None
    endpoint: str
    input_file: str
    total: int
    window: str
    created: int
    expires: int
    metadata: dict[str, Any] | None
    status: BatchStatus
    times: dict[str, int]
    ending: BatchStatus | None
    """The final status, once it is decided."""
    counts: tuple[int, int] | None
    """Lines of the output and error files, once it has ended: the files can be deleted later."""

    @property
    def results(self) -> Results:
        return Results.of(self.id)

    @property
    def output_file(self) -> str:
        return FILE_PREFIX + id_for(self.tenant, b"output", self.id.encode())

    @property
    def error_file(self) -> str:
        return FILE_PREFIX + id_for(self.tenant, b"errors", self.id.encode())


class BatchStore:
    """Raises ``Unavailable`` throughout, and ``ApiError`` 404 for a batch of another tenant."""

    def __init__(
        self, settings: GatewaySettings, connection: Connection, files: Files, clock: RedisClock
    ) -> None:
        self._connection = connection
        self._files = files
        self._clock = clock
        self._keys = GatewayKeys(settings.namespace)
        self._ttl = settings.batch_ttl

    async def create(
        self,
        caller: Caller,
        file: StoredFile,
        endpoint: str,
        window: str,
        seconds: float,
        metadata: dict[str, Any] | None,
    ) -> Batch:
        """Create a batch, and keep its input file until it ends.

        Raises:
            ApiError: 404 the file has expired or been deleted, 409 the tenant has too many batches.
        """
        batch_id = PREFIX + new_id(caller.tenant)
        seconds = round(min(seconds, self._ttl))
        life = round((seconds + self._ttl) * 1000)
        now = await self._files.reserve(caller, "batches", batch_id, life)
        fixed = {
            "tenant": json.dumps(caller.tenant),
            "endpoint": endpoint,
            "input_file": file.id,
            "total": file.lines,
            "window": window,
            "created": now,
            "expires": now + seconds,
            "metadata": json.dumps(metadata),
            "status": "validating",
        }
        await self._write(batch_id, fixed, life)
        if not await self._files.use(file.id, batch_id, life):
            await self.drop(caller, batch_id)
            raise not_found("There is no such file, or it has expired.")
        return _batch(batch_id, {name: str(value) for name, value in fixed.items()})

    async def drop(self, caller: Caller, batch_id: str) -> None:
        """Remove a batch that was never started."""
        key = self._keys.batch(batch_id)

        async def remove(server: Any) -> None:
            await server.delete(key)

        await self._connection.call(remove)
        await self._files.release(caller, "batches", batch_id)

    async def find(self, caller: Caller, batch_id: str) -> Batch:
        if not batch_id.startswith(PREFIX) or not caller.owns(batch_id.removeprefix(PREFIX)):
            raise _no_such_batch()
        batch = await self.read(batch_id)
        if batch is None:
            raise _no_such_batch()
        return batch

    async def all_of(self, caller: Caller) -> list[Batch]:
        """The newest first."""
        found = [await self.read(batch_id) for batch_id in await self._files.newest(caller, "batches")]
        known = [batch for batch in found if batch is not None]
        return sorted(known, key=lambda batch: batch.created, reverse=True)

    async def read(self, batch_id: str) -> Batch | None:
        """None for one that does not exist, or whose record is damaged."""
        key = self._keys.batch(batch_id)

        async def get(server: Any) -> dict[bytes, bytes]:
            return await server.hgetall(key)

        record = await self._connection.call(get)
        fields = {
            name.decode(errors="replace"): value.decode(errors="replace") for name, value in record.items()
        }
        try:
            return _batch(batch_id, fields) if fields else None
        except (KeyError, ValueError, RecursionError) as error:
            _log.error("batch %s: its record is damaged (%s), ignored", batch_id, type(error).__name__)
            return None

    async def counts(self, batch: Batch) -> tuple[int, int]:
        """Lines completed and lines failed."""
        return batch.counts or await self._files.counts(batch.results)

    async def closed(self, batch: Batch) -> bool:
        """Whether the batch's completion window has closed."""
        return await self._clock.now() >= batch.expires

    def retention(self, batch: Batch) -> int:
        """TTL in milliseconds of the data of a batch that has not ended, renewed by each change."""
        return round((batch.expires - batch.created + self._ttl) * 1000)

    async def advance(
        self, batch: Batch, status: BatchStatus, fields: dict[str, str | int] | None = None
    ) -> BatchStatus | None:
        """Set the status, its time, and ``fields``; returns the status afterwards, None without a batch.

        Nothing changes where ``status`` cannot follow the present one.
        """
        after = f" {' '.join(_PREDECESSORS[status])} "
        ttl = round(self._ttl * 1000) if status in ENDED else self.retention(batch)
        pairs = [part for pair in (fields or {}).items() for part in pair]
        key = [self._keys.batch(batch.id)]
        reply = await self._connection.call(
            lambda server: ADVANCE.run(server, key, [status, after, ttl, *pairs])
        )
        return reply.decode() or None

    async def _write(self, batch_id: str, fields: dict[str, Any], life: int) -> None:
        key = self._keys.batch(batch_id)

        async def write(server: Any) -> None:
            async with server.pipeline() as pipeline:
                pipeline.hset(key, mapping=fields)
                pipeline.pexpire(key, life)
                await pipeline.execute()

        await self._connection.call(write)


def _batch(batch_id: str, fields: dict[str, str]) -> Batch:
    ended = "completed" in fields
    return Batch(
        id=batch_id,
        tenant=json.loads(fields["tenant"]),
        endpoint=fields["endpoint"],
        input_file=fields["input_file"],
        total=int(fields["total"]),
        window=fields["window"],
        created=int(fields["created"]),
        expires=int(fields["expires"]),
        metadata=plain(json.loads(fields["metadata"])),
        status=fields["status"],  # pyright: ignore[reportArgumentType]  written by ``advance`` only
        times={name[3:]: int(value) for name, value in fields.items() if name.startswith("at:")},
        ending=fields.get("ending"),  # pyright: ignore[reportArgumentType]  likewise
        counts=(int(fields["completed"]), int(fields["failed"])) if ended else None,
    )


def _no_such_batch() -> ApiError:
    return not_found("There is no such batch, or it has expired.")
