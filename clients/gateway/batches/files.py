"""Uploads and result files of batches: lines in Redis, of one tenant, with a TTL."""

from collections.abc import AsyncGenerator, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from ...connection import Connection
from ..access.api_keys import Caller
from ..access.tenant_ids import new_id
from ..errors import ApiError, not_found
from ..redis_keys import GatewayKeys
from ..scripts import ADD_TO_INDEX, DELETE_FILE, RECORD_LINES, USE_FILE
from ..settings import GatewaySettings

PREFIX: Final = "file-"
_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class StoredFile:
    """Metadata of a file: ``bytes`` and ``lines`` stored, ``created`` in Unix seconds, ``place`` the key
    suffix of its lines. A result file has a part of the ``lines`` of its batch."""

    id: str
    filename: str
    purpose: str
    created: int
    bytes: int
    lines: int
    place: str


@dataclass(frozen=True, slots=True)
class Results:
    """Places of a batch's results: each line is in one of two, written by one script."""

    output: str
    errors: str

    @classmethod
    def of(cls, batch_id: str) -> "Results":
        return cls(f"{{{batch_id}}}:output", f"{{{batch_id}}}:errors")


class Files:
    """Raises ``Unavailable`` throughout, and ``ApiError`` 404 for a file of another tenant."""

    def __init__(self, settings: GatewaySettings, connection: Connection) -> None:
        self._limit = settings.max_files
        self._ttl = round(settings.batch_ttl * 1000)
        self._connection = connection
        self._keys = GatewayKeys(settings.namespace)

    async def reserve(self, caller: Caller, kind: str, new: str, ttl: int) -> int:
        """Add an id to the caller's index of ``kind`` for ``ttl`` ms; returns the time in Unix seconds.

        Raises:
            ApiError: 409, the tenant has too many.
        """
        index = [self._keys.index(kind, caller.tenant)]
        now: int = await self._connection.call(
            lambda server: ADD_TO_INDEX.run(server, index, [new, self._limit, ttl])
        )
        if not now:
            message = f"The limit of {self._limit} {kind} is reached; delete some or wait until they expire."
            raise ApiError(409, "invalid_request_error", message, code=f"too_many_{kind}")
        return now // 1000

    async def release(self, caller: Caller, kind: str, gone: str) -> None:
        """Remove an id from the caller's index of ``kind``."""
        index = self._keys.index(kind, caller.tenant)

        async def remove(server: Any) -> None:
            await server.zrem(index, gone)

        await self._connection.call(remove)

    async def store(self, caller: Caller, filename: str, purpose: str, lines: list[bytes]) -> StoredFile:
        """Store ``lines`` as a new file."""
        file_id = PREFIX + new_id(caller.tenant)
        created = await self.reserve(caller, "files", file_id, self._ttl)
        size = sum(map(len, lines)) + len(lines)
        file = StoredFile(file_id, filename, purpose, created, size, len(lines), _uploaded(file_id))
        for start in range(0, len(lines), _PAGE):
            await self._write_lines(file.place, dict(enumerate(lines[start : start + _PAGE], start)))
        await self.describe(file)
        return file

    async def record(self, file: str, results: Results, lines: dict[int, bytes], ttl: int) -> int:
        """Write result lines to ``file``, one of the two; returns how many were new.

        A number that has a line in either file keeps it. The TTL of both becomes ``ttl`` ms.
        """
        keys = [self._keys.lines(results.output), self._keys.lines(results.errors)]
        which = 1 if file == results.output else 2
        pairs = [part for number, line in lines.items() for part in (number, line)]
        return await self._connection.call(
            lambda server: RECORD_LINES.run(server, keys, [which, ttl, *pairs])
        )

    async def _write_lines(self, place: str, lines: dict[int, bytes]) -> None:
        key = self._keys.lines(place)

        async def write(server: Any) -> None:
            async with server.pipeline() as pipeline:
                pipeline.hset(key, mapping=lines)
                pipeline.pexpire(key, self._ttl)
                await pipeline.execute()

        await self._connection.call(write)

    async def describe(self, file: StoredFile) -> None:
        """Write the file's metadata, with the same TTL as its lines."""
        key, lines = self._keys.file(file.id), self._keys.lines(file.place)

        async def write(server: Any) -> None:
            # The lines of results are in another cluster slot than their metadata.
            async with server.pipeline(transaction=False) as pipeline:
                pipeline.hset(key, mapping=asdict(file))
                pipeline.pexpire(key, self._ttl)
                pipeline.pexpire(lines, self._ttl)
                await pipeline.execute()

        await self._connection.call(write)

    async def find(self, caller: Caller, file_id: str) -> StoredFile:
        if not file_id.startswith(PREFIX) or not caller.owns(file_id.removeprefix(PREFIX)):
            raise _no_such_file()
        file = await self._read(file_id)
        if file is None:
            raise _no_such_file()
        return file

    async def use(self, file_id: str, batch_id: str, ttl: int) -> int:
        """Keep an upload for a batch, for at least ``ttl`` ms; its number of lines, 0 if it is lost."""
        keys = [self._keys.file(file_id), self._keys.lines(_uploaded(file_id))]
        return await self._connection.call(lambda server: USE_FILE.run(server, keys, [batch_id, ttl]))

    async def stop_using(self, file_id: str, batch_id: str) -> None:
        """Allow the upload to be deleted: the batch has read it."""
        key = self._keys.file(file_id)

        async def write(server: Any) -> None:
            await server.hdel(key, f"used:{batch_id}")

        await self._connection.call(write)

    async def delete(self, caller: Caller, file_id: str) -> None:
        """Raises ``ApiError`` 409 while a batch reads it."""
        file = await self.find(caller, file_id)
        key = [self._keys.file(file_id)]
        if not await self._connection.call(lambda server: DELETE_FILE.run(server, key, [])):
            message = "The file is the input of a running batch; cancel the batch or wait for its end."
            raise ApiError(409, "invalid_request_error", message, code="file_in_use")
        lines = self._keys.lines(file.place)

        async def remove(server: Any) -> None:
            await server.delete(lines)

        await self._connection.call(remove)
        await self.release(caller, "files", file_id)

    async def newest(self, caller: Caller, kind: str) -> list[str]:
        """The caller's ids of ``kind``, newest first."""
        index = self._keys.index(kind, caller.tenant)

        async def read(server: Any) -> list[bytes]:
            return await server.zrevrange(index, 0, self._limit - 1)

        return [item.decode() for item in await self._connection.call(read)]

    async def all_of(self, caller: Caller) -> list[StoredFile]:
        """The newest first."""
        found = [await self._read(file_id) for file_id in await self.newest(caller, "files")]
        known = [file for file in found if file is not None]
        return sorted(known, key=lambda file: file.created, reverse=True)

    async def lines(self, place: str, count: int) -> AsyncGenerator[tuple[int, bytes | None]]:
        """Numbers 0 to ``count - 1`` with their lines, None where there is none; a page of them in memory."""
        for start in range(0, count, _PAGE):
            numbers = range(start, min(count, start + _PAGE))
            for number, line in zip(numbers, await self._page(place, numbers), strict=True):
                yield number, line

    async def upload_lines(self, file_id: str, count: int) -> AsyncGenerator[tuple[int, bytes | None]]:
        """``lines`` of an upload."""
        async for item in self.lines(_uploaded(file_id), count):
            yield item

    async def recorded(self, results: Results) -> set[int]:
        """Numbers of the lines that have a result."""
        keys = [self._keys.lines(results.output), self._keys.lines(results.errors)]

        async def read(server: Any) -> list[list[bytes]]:
            async with server.pipeline() as pipeline:
                for key in keys:
                    pipeline.hkeys(key)
                return await pipeline.execute()

        return {int(number) for numbers in await self._connection.call(read) for number in numbers}

    async def counts(self, results: Results) -> tuple[int, int]:
        """Number of lines in the output and error files."""
        keys = [self._keys.lines(results.output), self._keys.lines(results.errors)]

        async def read(server: Any) -> tuple[int, int]:
            async with server.pipeline() as pipeline:
                for key in keys:
                    pipeline.hlen(key)
                output, errors = await pipeline.execute()
                return output, errors

        return await self._connection.call(read)

    async def _page(self, place: str, numbers: Iterable[int]) -> list[bytes | None]:
        key = self._keys.lines(place)

        async def read(server: Any) -> list[bytes | None]:
            return await server.hmget(key, list(numbers))

        return await self._connection.call(read)

    async def _read(self, file_id: str) -> StoredFile | None:
        key = self._keys.file(file_id)

        async def read(server: Any) -> dict[bytes, bytes]:
            return await server.hgetall(key)

        record = await self._connection.call(read)
        fields = {name.decode(): value.decode(errors="replace") for name, value in record.items()}
        if "filename" not in fields:
            return None
        return StoredFile(
            id=file_id,
            filename=fields["filename"],
            purpose=fields["purpose"],
            created=int(fields["created"]),
            bytes=int(fields["bytes"]),
            lines=int(fields["lines"]),
            place=fields.get("place") or _uploaded(file_id),
        )


def _uploaded(file_id: str) -> str:
    return f"{{{file_id}}}:lines"


def _no_such_file() -> ApiError:
    return not_found("There is no such file, or it has expired.")
