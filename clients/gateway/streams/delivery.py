"""Delivery of events to clients: token metrics, and cancellation of requests without a client."""

from collections.abc import AsyncGenerator, Sequence, Set
from contextlib import suppress
from time import monotonic
from typing import Final

import anyio

from ...async_client import AsyncHandle
from ...errors import HeadraceError
from ...protocol import Delta, Done, Event, FinishReason
from ..admission.admission import cancel_all
from ..operation.metrics import Metrics

FAILURES: Final = frozenset[FinishReason]({"error", "expired"})
"""Finish reasons of which no response can be made."""
_ABANDON_WITHIN: Final = 3.0
"""Seconds; shorter than the time left after the grace period when the gateway stops."""


async def count_delivered(
    events: AsyncGenerator[Event], metrics: Metrics, submitted: float | None, had: int = 0
) -> AsyncGenerator[Event]:
    """``events``, counted in ``metrics``; with ``submitted`` (monotonic) the time to first token is recorded.

    ``had``: tokens that the client has received before and that are not counted again.
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


async def cancel_others_on_failure(
    handle: AsyncHandle, handles: Sequence[AsyncHandle]
) -> AsyncGenerator[Event]:
    """``handle``'s events. If it fails, so does the response it is part of, so the others are cancelled."""
    events = handle.events()
    try:
        async for event in events:
            if isinstance(event, Done) and event.finish_reason in FAILURES:
                await cancel_all([other for other in handles if other is not handle])
            yield event
    finally:
        await events.aclose()


async def cancel_unfinished(
    frames: AsyncGenerator[bytes], ended: Set[int], handles: Sequence[AsyncHandle]
) -> AsyncGenerator[bytes]:
    """``frames``; those of ``handles`` whose index is not in ``ended`` by then are cancelled."""
    try:
        async for data in frames:
            yield data
    finally:
        await frames.aclose()
        await abandon([handle for index, handle in enumerate(handles) if index not in ended])


async def abandon(handles: Sequence[AsyncHandle]) -> None:
    """Cancel requests that no client waits for, if Redis responds in time."""
    with suppress(HeadraceError), anyio.move_on_after(_ABANDON_WITHIN):
        await cancel_all(handles)
