"""A request's events as JSON, for server-sent events and WebSockets."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from ...json_values import finite_logprobs, plain
from ...protocol import Done, Event
from ..errors import api_error_of
from ..json_body import compact
from ..streams.merge import merge_events
from ..streams.position import StreamPosition
from ..streams.sse import HEARTBEAT, frame


def event_body(event: Event) -> dict[str, Any]:
    """``delta`` or ``done`` with the fields of the wire contract."""
    if isinstance(event, Done):
        usage, error = event.usage, event.error
        return {
            "type": "done",
            "seq": event.seq,
            "finish_reason": event.finish_reason,
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "cached_tokens": usage.cached_tokens,
            },
            "metadata": plain(event.metadata),
            "error": None if error is None else {"code": error.code, "message": error.message},
        }
    body = {
        "type": "delta",
        "seq": event.seq,
        "pos": event.pos,
        "epoch": event.epoch,
        "tokens": event.tokens,
        "text": event.text,
    }
    return body if event.logprobs is None else {**body, "logprobs": finite_logprobs(event.logprobs)}


async def native_frames(
    events: AsyncGenerator[Event], position: StreamPosition, heartbeat: float, leave: asyncio.Future[None]
) -> AsyncGenerator[bytes]:
    """Frames of the events with the stream position as event id; an ``error`` event if reading fails.

    The first frame sets the reconnection time: a client resumes a stream that ends without ``done``. It has
    no blank line, as ``HEARTBEAT`` has none.
    """
    yield b"retry: 1000\n"
    items = merge_events([events], heartbeat, heartbeat, leave)
    try:
        async for item in items:
            if item is None:
                yield HEARTBEAT
                continue
            event = item[1]
            position.advance(event)
            body = event_body(event)
            yield frame(compact(body), event=body["type"], event_id=str(position))
    except Exception as error:
        failure = api_error_of(error)
        if failure is None:
            raise
        yield frame(compact(failure.body), event="error")
    finally:
        await items.aclose()
