"""Work loop of a schedule: runs due tasks with bounded concurrency."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import anyio.lowlevel

from ...errors import Unavailable
from ...jitter import jittered
from .schedule import LeasedTask, Schedule

_POLL_EVERY: Final = 0.5
"""Seconds between polls while nothing is due."""
_AFTER_ERROR: Final = 2.0

_log = logging.getLogger(__name__)


async def run_due_tasks(
    schedule: Schedule, lease: float, at_once: int, work: Callable[[LeasedTask], Awaitable[None]]
) -> None:
    """Lease due tasks and run ``work`` on each, up to ``at_once`` at a time; does not return.

    If ``work`` raises, its task is due again when the lease expires; other tasks are not affected.
    """
    places = anyio.CapacityLimiter(at_once)

    async def attempt(leased: LeasedTask) -> None:
        try:
            await work(leased)
        except Unavailable as error:
            _log.warning("task %s: failed, due again when its lease expires: %s", leased.id, error)
        except Exception as error:
            _log.exception(
                "task %s: failed, due again when its lease expires: %s", leased.id, type(error).__name__
            )
        finally:
            places.release_on_behalf_of(leased)

    async with anyio.create_task_group() as tasks:
        while True:
            await anyio.lowlevel.checkpoint()
            try:
                leased = await schedule.take(lease) if places.available_tokens else None
            except Unavailable as error:
                _log.warning("schedule not read, retrying: %s", error)
                await anyio.sleep(_AFTER_ERROR)
                continue
            if leased is None:
                await anyio.sleep(jittered(_POLL_EVERY))
            else:
                places.acquire_on_behalf_of_nowait(leased)
                tasks.start_soon(attempt, leased)
