"""Uploaded files and batches' results: lines in Redis, of one tenant, for a limited time."""

from collections.abc import AsyncGenerator, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from ..connection import Connection
from .api_keys import Caller
from .errors import ApiError, not_found
from .identity import new_id
from .redis_keys import GatewayKeys
from .scripts import ADD_TO_INDEX
from .settings import GatewaySettings

PREFIX: Final = "file-"
_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class StoredFile:
    """``bytes`` and ``lines`` count what is stored; ``created`` is in Unix seconds."""

    id: str
    filename: str
    purpose: str
    created: int
    bytes: int
    lines: int


class Files:
    """Raises ``Unavailable`` throughout, and ``ApiError`` 404 for what is not the caller's."""

    def __init__(self, settings: GatewaySettings, connection: Connection) -> None:
        self._limit = settings.max_files
        self._ttl = round(settings.batch_ttl * 1000)
        self._connection = connection
        self._keys = GatewayKeys(settings.namespace)

    async def reserve(self, caller: Caller, kind: str, new: str) -> int:
        """Count one thing more of ``kind`` for the caller; the time in Unix seconds.

        Raises:
            ApiError: 409, there are too many.
        """
        index = [self._keys.index(kind, caller.tenant)]
        now: int = await self._connection.call(
            lambda server: ADD_TO_INDEX.run(server, index, [new, self._limit, self._ttl])
        )
        if not now:
            message = f"You have {self._limit} {kind} already; each goes after a while."
            raise ApiError(409, "invalid_request_error", message, code=f"too_many_{kind}")
        return now // 1000

    async def store(self, caller: Caller, filename: str, purpose: str, lines: list[bytes]) -> StoredFile:
        """Store ``lines`` as a new file."""
        file_id = PREFIX + new_id(caller.tenant)
        created = await self.reserve(caller, "files", file_id)
        for start in range(0, len(lines), _PAGE):
            page = lines[start : start + _PAGE]
            await self.add_lines(file_id, {start + number: line for number, line in enumerate(page)})
        size = sum(map(len, lines)) + len(lines)
        file = StoredFile(file_id, filename, purpose, created, size, len(lines))
        await self.describe(file)
        return file

    async def add_lines(self, file_id: str, lines: dict[int, bytes]) -> None:
        """Write lines by their numbers; writing one again changes nothing."""
        key = self._keys.lines(file_id)

        async def write(server: Any) -> None:
            async with server.pipeline() as pipeline:
                for number, line in lines.items():
                    pipeline.hsetnx(key, number, line)
                pipeline.pexpire(key, self._ttl)
                await pipeline.execute()

        if lines:
            await self._connection.call(write)

    async def describe(self, file: StoredFile) -> None:
        """Make the file known; for as long as its lines are."""
        key, lines = self._keys.file(file.id), self._keys.lines(file.id)

        async def write(server: Any) -> None:
            async with server.pipeline() as pipeline:
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

    async def keep(self, file: StoredFile) -> None:
        """Begin the file's time anew."""
        await self.describe(file)

    async def delete(self, caller: Caller, file_id: str) -> None:
        await self.find(caller, file_id)
        keys = [self._keys.file(file_id), self._keys.lines(file_id)]
        index = self._keys.index("files", caller.tenant)

        async def remove(server: Any) -> None:
            await server.delete(*keys)
            await server.zrem(index, file_id)

        await self._connection.call(remove)

    async def newest(self, caller: Caller, kind: str) -> list[str]:
        """Ids of the caller's things of ``kind``, the newest first."""
        index = self._keys.index(kind, caller.tenant)

        async def read(server: Any) -> list[bytes]:
            return await server.zrevrange(index, 0, self._limit - 1)

        return [item.decode() for item in await self._connection.call(read)]

    async def all_of(self, caller: Caller) -> list[StoredFile]:
        found = [await self._read(file_id) for file_id in await self.newest(caller, "files")]
        return [file for file in found if file is not None]

    async def lines(self, file_id: str, count: int) -> AsyncGenerator[tuple[int, bytes]]:
        """Lines 0 to ``count - 1`` that there are, a page of them in memory at a time."""
        for start in range(0, count, _PAGE):
            numbers = range(start, min(count, start + _PAGE))
            for number, line in zip(numbers, await self._page(file_id, numbers), strict=True):
                if line is not None:
                    yield number, line

    async def numbers(self, file_id: str) -> set[int]:
        """Numbers of the lines that there are."""
        key = self._keys.lines(file_id)

        async def read(server: Any) -> list[bytes]:
            return await server.hkeys(key)

        return {int(number) for number in await self._connection.call(read)}

    async def count(self, file_id: str) -> int:
        key = self._keys.lines(file_id)

        async def read(server: Any) -> int:
            return await server.hlen(key)

        return await self._connection.call(read)

    async def _page(self, file_id: str, numbers: Iterable[int]) -> list[bytes | None]:
        key = self._keys.lines(file_id)

        async def read(server: Any) -> list[bytes | None]:
            return await server.hmget(key, list(numbers))

        return await self._connection.call(read)

    async def _read(self, file_id: str) -> StoredFile | None:
        key = self._keys.file(file_id)

        async def read(server: Any) -> dict[bytes, bytes]:
            return await server.hgetall(key)

        record = await self._connection.call(read)
        fields = {name.decode(): value.decode() for name, value in record.items()}
        if not fields:
            return None
        return StoredFile(
            id=file_id,
            filename=fields["filename"],
            purpose=fields["purpose"],
            created=int(fields["created"]),
            bytes=int(fields["bytes"]),
            lines=int(fields["lines"]),
        )


def _no_such_file() -> ApiError:
    return not_found("There is no such file, or it has expired.")
