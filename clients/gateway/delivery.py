"""What all streams share: counting what readers get, and ending a request whose reader has gone."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from time import monotonic

from ..async_client import AsyncHandle
from ..protocol import Delta, Event
from .intake import cancel_all
from .metrics import Metrics
from .slots import StreamSlots


async def counted(
    events: AsyncGenerator[Event], metrics: Metrics, submitted: float | None, had: int = 0
) -> AsyncGenerator[Event]:
    """``events``, counted; ``submitted`` (monotonic) where the time to the first token is worth knowing.

    ``had``: tokens that the reader got before, and that are not delivered again.
    """
    try:
        async for event in events:
            if isinstance(event, Delta):
                metrics.delivered_tokens.inc(len(event.tokens[max(had - event.seq, 0) :]))
                if submitted is not None and event.seq == 0:
                    metrics.first_token(monotonic() - submitted)
                    submitted = None
            yield event
    finally:
        await events.aclose()


async def cancelling(
    frames: AsyncGenerator[bytes],
    handles: Sequence[AsyncHandle],
    leave: asyncio.Future[None],
    slots: StreamSlots,
) -> AsyncGenerator[bytes]:
    """``frames``; if the reader leaves before their end, the requests are cancelled."""
    ended = False
    try:
        async for data in frames:
            yield data
        ended = not leave.done()
    finally:
        await frames.aclose()
        if not ended and not slots.draining:
            await cancel_all(handles)
