"""Those who submit a request and follow it, each in a way of its own, through a network that fails."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import redis.asyncio
import redis.exceptions

from headrace.clients import AsyncClient, Unavailable, UnknownRequest
from headrace.clients.protocol import Done, Event, Keys, encode_request, lane_of

from .views import View
from .workload import Job, Subscriber

_APPEARS = 15.0


async def submit(job: Job, client: AsyncClient, direct: redis.asyncio.Redis) -> None:
    """Enqueue, however often it takes."""
    job.submitted_at.append(time.monotonic())
    request = job.request
    if not job.bare:
        fields = {**request.model_dump(exclude_defaults=True), "id": request.id}
        await _insisting(lambda: client.submit(**fields))
        return
    queue = Keys().queue(request.model, request.priority, lane_of(request.tenant))
    await _insisting(lambda: direct.xadd(queue, {"r": encode_request(request)}))


async def follow(
    job: Job,
    kind: Subscriber,
    client: AsyncClient,
    direct: redis.asyncio.Redis,
    dice: random.Random,
    *,
    durable: bool,
) -> View:
    """Follow to the end; the view of one subscriber.

    A request that Redis has forgotten is submitted again under its id, by all who followed it: once is
    enough.
    """
    view = View(job, kind, durable)
    if kind == "late":
        await asyncio.sleep(dice.uniform(0.0, 2.0))
    while view.done is None:
        handle = client.attach(job.request.id, wait=_APPEARS if job.bare else 0.0)
        patience = dice.randint(1, 20) if kind == "reconnecting" else None
        events = handle.events(seq=len(view.tokens), pos=len(view.text))
        try:
            await _take(view, events, patience)
        except UnknownRequest:
            job.resubmitted += 1
            await submit(job, client, direct)
        except Unavailable:
            await asyncio.sleep(0.1)
        finally:
            await events.aclose()
        if view.done is None and job.cancel_after is not None and len(view.tokens) >= job.cancel_after:
            await _insisting(handle.cancel)
    return view


async def _take(view: View, events: Any, patience: int | None) -> None:
    """Take events until done, until ``patience`` of them have come, or until it is time to cancel."""
    cancel_after = view.job.cancel_after
    due = cancel_after is not None and len(view.tokens) < cancel_after
    count = 0
    event: Event
    async for event in events:
        view.take(event)
        count += 1
        if isinstance(event, Done) or count == patience:
            return
        if due and cancel_after is not None and len(view.tokens) >= cancel_after:
            return


async def _insisting(attempt: Callable[[], Awaitable[Any]]) -> None:
    while True:
        try:
            await attempt()
        except (Unavailable, redis.exceptions.RedisError, OSError):
            await asyncio.sleep(0.05)
        else:
            return
