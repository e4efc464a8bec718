"""Merging of several requests' events, with heartbeats when idle."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from ...protocol import Event


async def merge_events(
    sources: Sequence[AsyncGenerator[Event]],
    first_silence: float,
    silence: float,
    leave: asyncio.Future[None],
) -> AsyncGenerator[tuple[int, Event] | None]:
    """Events with the index of their source, in order of arrival; None, for a heartbeat, after ``silence``
    seconds without an event, the first time after ``first_silence``.

    Ends when all sources have, or when ``leave`` is done. A source is read again only once its last event was
    consumed, so nothing is buffered here. Raises what a source raises.
    """
    waiting = {_next(source): number for number, source in enumerate(sources)}
    patience = first_silence
    try:
        while waiting:
            done, _ = await asyncio.wait(
                [*waiting, leave], timeout=patience, return_when=asyncio.FIRST_COMPLETED
            )
            patience = silence
            if leave.done():
                return
            if not done:
                yield None
            for task in [task for task in waiting if task in done]:
                number = waiting.pop(task)
                try:
                    event = task.result()
                except StopAsyncIteration:
                    continue
                yield number, event
                waiting[_next(sources[number])] = number
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for source in sources:
            await source.aclose()


def _next(source: AsyncGenerator[Event]) -> "asyncio.Task[Event]":
    return asyncio.ensure_future(anext(source))  # pyright: ignore[reportReturnType, reportArgumentType]
