"""An event loop in a thread of its own, for code that has none."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class LoopThread:
    """Runs coroutines for other threads. A daemon thread: it holds up no interpreter's exit."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace client", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        """False once stopped, and in a forked child, which has no such thread."""
        return self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """``work``'s result. An interrupt here, or ``TimeoutError``, cancels it."""
        if not self.is_alive():
            work.close()
            raise RuntimeError("the client was closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the loop and the thread; what still runs is cancelled and gets a moment to clean up."""
        self.run(_cancel_others())
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
