"""Doing scheduled work: some tasks at a time, for as long as the gateway lives."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import anyio.lowlevel

from ...errors import Unavailable
from ...jitter import jittered
from .schedule import LeasedTask, Schedule

_LOOK_EVERY: Final = 0.5
"""Seconds between looks while nothing is due."""
_AFTER_TROUBLE: Final = 2.0

_log = logging.getLogger(__name__)


async def run_due_tasks(
    schedule: Schedule, lease: float, at_once: int, work: Callable[[LeasedTask], Awaitable[None]]
) -> None:
    """Take what is due and hand it to ``work``, up to ``at_once`` tasks at a time; for ever.

    Whatever ``work`` raises costs its task the rest of the lease, and nothing else.
    """
    places = anyio.CapacityLimiter(at_once)

    async def attempt(leased: LeasedTask) -> None:
        try:
            await work(leased)
        except Unavailable as error:
            _log.warning("task %s: %s", leased.id, error)
        except Exception as error:
            _log.exception("task %s: %s", leased.id, type(error).__name__)
        finally:
            places.release_on_behalf_of(leased)

    async with anyio.create_task_group() as tasks:
        while True:
            await anyio.lowlevel.checkpoint()
            try:
                leased = await schedule.take(lease) if places.available_tokens else None
            except Unavailable as error:
                _log.warning("scheduled work: %s", error)
                await anyio.sleep(_AFTER_TROUBLE)
                continue
            if leased is None:
                await anyio.sleep(jittered(_LOOK_EVERY))
            else:
                places.acquire_on_behalf_of_nowait(leased)
                tasks.start_soon(attempt, leased)
