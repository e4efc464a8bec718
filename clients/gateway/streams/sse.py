"""Server-sent events over ASGI: frames, and a response that notices when its reader leaves or stalls."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from typing import Final

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .slots import StreamSlot

HEARTBEAT: Final = b": alive\n"
"""A comment, which readers pass over and proxies count as traffic. No blank line: after an event with an id,
readers that keep the id (httpx-sse, openai) would take it for the end of an event without data."""


def frame(data: bytes, *, event: str | None = None, event_id: str | None = None) -> bytes:
    """One event; ``data`` is one line."""
    lines = [
        f"id: {event_id}\n".encode() if event_id is not None else b"",
        f"event: {event}\n".encode() if event is not None else b"",
        b"data: " + data + b"\n\n",
    ]
    return b"".join(lines)


class ReaderStalled(Exception):
    """The reader of a stream took nothing for too long."""


class SseResponse(Response):
    """Sends the frames that ``frames`` makes, as they come, in ``slot``, which it closes.

    The future that ``frames`` is given is done once the reader has gone or the gateway stops: it then ends.
    What it raises before the first frame is answered with a status, since nothing was sent yet.

    A reader who takes nothing for ``write_timeout`` seconds is left: what is sent waits in one buffer of the
    connection, and no next frame is made meanwhile.

    ``farewell``: a last frame for a reader who cannot come back and is cut off; those without one can, and
    are sent away as soon as the gateway stops.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: Callable[[asyncio.Future[None]], AsyncGenerator[bytes]],
        slot: StreamSlot,
        write_timeout: float,
        headers: dict[str, str] | None = None,
        farewell: bytes | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        # Nginx and others buffer a response unless told not to, and what compresses holds back what it has.
        told = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
        self.init_headers({**told, **(headers or {})})
        del self.headers["content-length"]
        self._frames = frames
        self._slot = slot
        self._write_timeout = write_timeout
        self._farewell = farewell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        with self._slot as leave, until_disconnect(receive, leave):
            frames = self._frames(leave)
            begun = False
            try:
                first = await anext(frames, b"")
                begun = True
                await send(start)
                await self._body(send, first, more=True)
                async for data in frames:
                    await self._body(send, data, more=True)
                await self._body(send, b"", more=False)
            except asyncio.CancelledError:
                if not begun or self._farewell is None:
                    raise
                _uncancel()
                await self._body(send, self._farewell, more=False)
            finally:
                await frames.aclose()

    async def _body(self, send: Send, data: bytes, *, more: bool) -> None:
        try:
            with anyio.fail_after(self._write_timeout):
                await send({"type": "http.response.body", "body": data, "more_body": more})
        except TimeoutError:
            raise ReaderStalled from None


def _uncancel() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


@contextmanager
def until_disconnect(
    receive: Receive, leave: asyncio.Future[None] | None = None
) -> Generator[asyncio.Future[None]]:
    """A future that is done once the client has gone; ``leave`` itself, if given."""
    gone = asyncio.get_running_loop().create_future() if leave is None else leave
    task = asyncio.create_task(_wait_for_disconnect(receive, gone))
    try:
        yield gone
    finally:
        task.cancel()


async def _wait_for_disconnect(receive: Receive, gone: asyncio.Future[None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    if not gone.done():
        gone.set_result(None)
