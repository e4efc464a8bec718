"""What a test must not leave behind: tasks and connections of its event loop, keys without a TTL."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from redis.asyncio.connection import AbstractConnection
from waiting import eventually

_GRACE = 10.0
"""Seconds for what is closing already."""


class Leftovers:
    """Of one event loop, since this was made; ``connections`` is what ``watched_connections`` gives."""

    def __init__(self, connections: Callable[[], set[object]]) -> None:
        self._connections = connections
        self._tasks_before: set[asyncio.Task[Any]] = asyncio.all_tasks()
        self._connections_before = connections()

    async def check(self) -> None:
        """Fail for what is still there."""
        try:
            await eventually(lambda: not self._tasks() and not self._connected(), _GRACE)
        except AssertionError:
            pytest.fail(f"left behind: tasks {self._tasks()}, connections {self._connected()}")

    def _tasks(self) -> set[asyncio.Task[Any]]:
        new = asyncio.all_tasks() - self._tasks_before
        return {task for task in new if not _is_of_the_runner(task)}

    def _connected(self) -> set[object]:
        return self._connections() - self._connections_before


def _is_of_the_runner(task: asyncio.Task[Any]) -> bool:
    """anyio's, in which tests and fixtures run."""
    return getattr(task.get_coro(), "__qualname__", "").startswith("TestRunner.")


@contextmanager
def watched_connections() -> Iterator[Callable[[], set[object]]]:
    """Watches connections to Redis made inside; gives a function for the running loop's open ones."""
    made: WeakKeyDictionary[AbstractConnection, asyncio.AbstractEventLoop] = WeakKeyDictionary()
    initialize = AbstractConnection.__init__

    def note(self: AbstractConnection, *arguments: Any, **more: Any) -> None:
        initialize(self, *arguments, **more)
        try:
            made[self] = asyncio.get_running_loop()
        except RuntimeError:
            return

    def connected() -> set[object]:
        loop = asyncio.get_running_loop()
        return {one for one, of in list(made.items()) if of is loop and one.is_connected}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AbstractConnection, "__init__", note)
        yield connected
