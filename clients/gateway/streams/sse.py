"""Server-sent events over ASGI: frames, and a response that detects disconnects and stalled clients."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from typing import Final

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .slots import StreamSlot

HEARTBEAT: Final = b": alive\n"
"""A comment, which clients ignore and proxies count as traffic. Without a blank line: after an event with an
id, clients that keep the id (httpx-sse, openai) would parse it as the end of an event without data."""


def frame(data: bytes, *, event: str | None = None, event_id: str | None = None) -> bytes:
    """One event; ``data`` must be a single line."""
    lines = [
        f"id: {event_id}\n".encode() if event_id is not None else b"",
        f"event: {event}\n".encode() if event is not None else b"",
        b"data: " + data + b"\n\n",
    ]
    return b"".join(lines)


class ReaderStalled(Exception):
    """The client of a stream read nothing for the write timeout."""


class SseResponse(Response):
    """Sends the frames of ``frames`` as they are made, and closes ``slot`` at the end.

    ``frames`` is called with a future that is done once the client has disconnected or the gateway drains,
    and then ends. An error that it raises before the first frame becomes an error response.

    Raises ``ReaderStalled`` if the client reads nothing for ``write_timeout`` seconds; meanwhile no further
    frame is made.

    ``last_frame``: a last frame, sent when a stream that cannot be resumed is cancelled. Resumable streams
    have none: they end as soon as the gateway drains.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: Callable[[asyncio.Future[None]], AsyncGenerator[bytes]],
        slot: StreamSlot,
        write_timeout: float,
        headers: dict[str, str] | None = None,
        last_frame: bytes | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        # Nginx and other proxies buffer responses by default, and compression holds back what it has.
        defaults = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
        self.init_headers({**defaults, **(headers or {})})
        del self.headers["content-length"]
        self._frames = frames
        self._slot = slot
        self._write_timeout = write_timeout
        self._last_frame = last_frame

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        with self._slot as leave, until_disconnect(receive, leave):
            frames = self._frames(leave)
            started = False
            try:
                first = await anext(frames, b"")
                started = True
                await send(start)
                await self._body(send, first, more=True)
                async for data in frames:
                    await self._body(send, data, more=True)
                await self._body(send, b"", more=False)
            except asyncio.CancelledError:
                if not started or self._last_frame is None:
                    raise
                _uncancel()
                await self._body(send, self._last_frame, more=False)
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
    """A future that is done once the client has disconnected; ``leave`` itself, if given."""
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
