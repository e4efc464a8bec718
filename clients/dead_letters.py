"""Requests that workers gave up on: what they were, and another try."""

from dataclasses import dataclass
from typing import Any, Final

import redis.asyncio

from .connection import Connection
from .protocol import Keys, Request, RequestError, decode_request
from .scripts import REVIVE
from .submission import enqueue

_PAGE: Final = 100


class DeadLetterUnusable(Exception):
    """This dead letter holds no request that could be run again; the message says why."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One request given up on. ``id`` is the letter's own, ``body`` the queue entry's bytes."""

    id: str
    error: str
    attempts: int
    body: bytes

    @property
    def time_ms(self) -> int:
        """When it was given up, Unix ms by Redis's clock."""
        return int(self.id.partition("-")[0])

    def request(self) -> Request:
        """The request in it.

        Raises:
            DeadLetterUnusable: the bytes are no valid request.
        """
        try:
            return decode_request(self.body)
        except RequestError as error:
            raise DeadLetterUnusable(str(error)) from error


class DeadLetters:
    """The dead letters of one model. All methods raise ``Unavailable`` where Redis cannot be reached."""

    def __init__(self, connection: Connection, keys: Keys, model: str) -> None:
        self._connection = connection
        self._keys = keys
        self._stream = keys.dead(model)

    async def newest(self, count: int) -> list[DeadLetter]:
        """At most ``count`` letters, newest first."""

        async def read(server: redis.asyncio.Redis) -> Any:
            return await server.xrevrange(self._stream, count=count)

        return [_letter(entry, fields) for entry, fields in await self._connection.call(read)]

    async def get(self, letter_id: str) -> DeadLetter | None:
        """The letter with this id, or of the request with this id (the newest), or None."""
        last = "+"
        while True:
            position = last

            async def read(server: redis.asyncio.Redis, position: str = position) -> Any:
                return await server.xrevrange(self._stream, max=position, count=_PAGE)

            page = [_letter(entry, fields) for entry, fields in await self._connection.call(read)]
            for letter in page:
                if letter.id == letter_id or _request_id(letter) == letter_id:
                    return letter
            if len(page) < _PAGE:
                return None
            last = f"({page[-1].id}"

    async def retry(self, letter: DeadLetter) -> Request:
        """Enqueue the letter's request again, under its id and as if for the first time, and drop the letter.

        Raises:
            DeadLetterUnusable: it holds no valid request, or its request is queued or running already.
        """
        request = letter.request()
        keys = [self._keys.request(request.id), self._keys.events(request.id)]
        if not await self._connection.call(lambda server: REVIVE.run(server, keys, [])):
            raise DeadLetterUnusable(f"request {request.id} is queued or running")
        await enqueue(self._connection, self._keys, [request], None)
        await self.drop(letter)
        return request

    async def drop(self, letter: DeadLetter) -> None:
        """Delete the letter; its request's result stays until it expires."""
        await self._connection.call(lambda server: server.xdel(self._stream, letter.id))


def _letter(entry: bytes, fields: dict[bytes, bytes]) -> DeadLetter:
    return DeadLetter(
        id=entry.decode(),
        error=fields.get(b"error", b"").decode(errors="replace"),
        attempts=int(fields.get(b"attempts", b"0")),
        body=fields.get(b"r", b""),
    )


def _request_id(letter: DeadLetter) -> str | None:
    try:
        return decode_request(letter.body).id
    except RequestError as error:
        return error.request_id
