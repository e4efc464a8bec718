"""An event loop in a thread of its own, for code that has none."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

_T = TypeVar("_T")


class LoopThread:
    """Runs coroutines for other threads. A daemon thread: it holds up no interpreter's exit."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace client", daemon=True)
        self._thread.start()
        # Whether it runs is not asked of the thread: if interrupted in answering, it takes itself for ended.
        self._process = os.getpid()
        self._stopped = False

    def is_alive(self) -> bool:
        """False once stopped, and in a forked child, which has no such thread."""
        return not self._stopped and self._process == os.getpid()

    def run(self, work: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """``work``'s result. An interrupt here, or ``TimeoutError``, cancels it."""
        if not self.is_alive():
            work.close()
            raise RuntimeError("the client was closed")
        # Not a future of the standard library: an interrupt at the wrong moment leaves the lock of one taken,
        # and then its loop waits for it for ever.
        ended: SimpleQueue[asyncio.Task[_T]] = SimpleQueue()
        tasks: list[asyncio.Task[_T]] = []

        def start() -> None:
            task = self._loop.create_task(work)
            tasks.append(task)
            task.add_done_callback(ended.put)

        def cancel() -> None:
            for task in tasks:
                task.cancel()
            if not tasks:
                work.close()

        try:
            self._loop.call_soon_threadsafe(start)
            task = ended.get(timeout=timeout)
        except BaseException as error:
            self._loop.call_soon_threadsafe(cancel)
            if isinstance(error, Empty):
                raise TimeoutError from None
            raise
        if task.cancelled():
            raise CancelledError
        return task.result()

    def stop(self) -> None:
        """End the loop and the thread; what still runs is cancelled and gets a moment to clean up."""
        self.run(_cancel_others())
        self._stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=5)
    await asyncio.get_running_loop().shutdown_asyncgens()
