"""Waiting for something to become true, for tests."""

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

T = TypeVar("T")
LONG = 30.0


async def eventually(condition: Callable[[], T | Awaitable[T]], seconds: float = LONG) -> T:
    """The first true value of ``condition``."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        value = condition()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value
        await anyio.sleep(0.01)
    raise AssertionError(f"{condition} stayed false for {seconds} s")


def eventually_sync(condition: Callable[[], T], seconds: float = LONG) -> T:
    """The first true value of ``condition``."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError(f"{condition} stayed false for {seconds} s")
