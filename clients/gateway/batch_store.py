"""Batches' descriptions in Redis."""

import json
from dataclasses import dataclass
from time import time
from typing import Any, Final, Literal

from ..connection import Connection
from .api_keys import Caller
from .errors import ApiError, not_found
from .files import PREFIX as FILE_PREFIX
from .files import Files, StoredFile
from .identity import id_for, new_id
from .redis_keys import GatewayKeys
from .settings import GatewaySettings

PREFIX: Final = "batch_"

BatchStatus = Literal[
    "validating", "in_progress", "finalizing", "completed", "cancelling", "cancelled", "expired"
]
ENDED: Final = frozenset({"completed", "cancelled", "expired"})


@dataclass(frozen=True, slots=True)
class Batch:
    """Times are in Unix seconds; ``times`` says when each status was reached."""

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

    @property
    def output_file(self) -> str:
        return FILE_PREFIX + id_for(self.tenant, b"output", self.id.encode())

    @property
    def error_file(self) -> str:
        return FILE_PREFIX + id_for(self.tenant, b"errors", self.id.encode())


class BatchStore:
    """Raises ``Unavailable`` throughout, and ``ApiError`` 404 for what is not the caller's."""

    def __init__(self, settings: GatewaySettings, connection: Connection, files: Files) -> None:
        self._connection = connection
        self._files = files
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
        """Describe a new batch, and keep its file as long.

        Raises:
            ApiError: 409 there are too many.
        """
        batch_id = PREFIX + new_id(caller.tenant)
        now = await self._files.reserve(caller, "batches", batch_id)
        await self._files.keep(file)
        batch = Batch(
            id=batch_id,
            tenant=caller.tenant,
            endpoint=endpoint,
            input_file=file.id,
            total=file.lines,
            window=window,
            created=now,
            expires=now + round(min(seconds, self._ttl)),
            metadata=metadata,
            status="validating",
            times={},
        )
        fixed = {
            "tenant": json.dumps(batch.tenant),
            "endpoint": endpoint,
            "input_file": file.id,
            "total": batch.total,
            "window": window,
            "created": now,
            "expires": batch.expires,
            "metadata": json.dumps(metadata),
            "status": batch.status,
        }
        await self._write(batch_id, fixed)
        return batch

    async def find(self, caller: Caller, batch_id: str) -> Batch:
        if not batch_id.startswith(PREFIX) or not caller.owns(batch_id.removeprefix(PREFIX)):
            raise _no_such_batch()
        batch = await self.read(batch_id)
        if batch is None:
            raise _no_such_batch()
        return batch

    async def all_of(self, caller: Caller) -> list[Batch]:
        found = [await self.read(batch_id) for batch_id in await self._files.newest(caller, "batches")]
        return [batch for batch in found if batch is not None]

    async def read(self, batch_id: str) -> Batch | None:
        key = self._keys.batch(batch_id)

        async def get(server: Any) -> dict[bytes, bytes]:
            return await server.hgetall(key)

        record = await self._connection.call(get)
        fields = {name.decode(): value.decode() for name, value in record.items()}
        return _batch(batch_id, fields) if "status" in fields else None

    async def progress(self, batch: Batch) -> tuple[int, int]:
        """How many lines have been answered, and how many have failed."""
        return await self._files.count(batch.output_file), await self._files.count(batch.error_file)

    async def reach(self, batch_id: str, status: BatchStatus) -> None:
        """Note a status and when it was reached."""
        await self._write(batch_id, {"status": status, f"at:{status}": int(time())})

    async def _write(self, batch_id: str, fields: dict[str, Any]) -> None:
        key = self._keys.batch(batch_id)

        async def write(server: Any) -> None:
            async with server.pipeline() as pipeline:
                pipeline.hset(key, mapping=fields)
                pipeline.pexpire(key, round(self._ttl * 1000))
                await pipeline.execute()

        await self._connection.call(write)


def _batch(batch_id: str, fields: dict[str, str]) -> Batch:
    return Batch(
        id=batch_id,
        tenant=json.loads(fields["tenant"]),
        endpoint=fields["endpoint"],
        input_file=fields["input_file"],
        total=int(fields["total"]),
        window=fields["window"],
        created=int(fields["created"]),
        expires=int(fields["expires"]),
        metadata=json.loads(fields["metadata"]),
        status=fields["status"],  # pyright: ignore[reportArgumentType]  written by ``reach`` only
        times={name[3:]: int(value) for name, value in fields.items() if name.startswith("at:")},
    )


def _no_such_batch() -> ApiError:
    return not_found("There is no such batch, or it has expired.")
