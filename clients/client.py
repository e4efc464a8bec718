"""The client for code without an event loop: the same surface as ``AsyncClient``, blocking."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from threading import Lock
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from .async_client import DEFAULT_QUEUE_LIMIT, DEFAULT_URL, AsyncClient, AsyncHandle
from .loop_thread import LoopThread
from .protocol import Event, Request
from .request_state import RequestStatus
from .result import Result, completed_text
from .submission import RequestFields

_T = TypeVar("_T")


class Client:
    """Submits requests to workers, and follows them. Arguments as for ``AsyncClient``.

    May be shared between threads. It is the asynchronous client on an event loop in a background thread, so
    that there is one implementation of the delivery promise; the thread starts with the first call, and
    again in a forked child. Close it with ``close`` or ``with``.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        model: str | None = None,
        namespace: str = "headrace",
        queue_limit: int | None = DEFAULT_QUEUE_LIMIT,
        timeout: float = 5.0,
        patience: float = 30.0,
    ) -> None:
        def make() -> AsyncClient:
            return AsyncClient(
                url,
                model=model,
                namespace=namespace,
                queue_limit=queue_limit,
                timeout=timeout,
                patience=patience,
            )

        self._make: Callable[[], AsyncClient] = make
        self._lock = Lock()
        self._process = os.getpid()
        self._thread: LoopThread | None = None
        self._inner = make()

    def submit(self, prompt: str | None = None, **fields: Unpack[RequestFields]) -> "Handle":
        """Enqueue a request and return a handle on it at once; see ``AsyncClient.submit``."""
        thread, client = self._ready()
        return self._handle(thread.run(client.submit(prompt, **fields)))

    def submit_all(self, requests: Sequence[Request]) -> "list[Handle]":
        """Enqueue requests of one model, all or none; see ``AsyncClient.submit_all``."""
        thread, client = self._ready()
        return [self._handle(handle) for handle in thread.run(client.submit_all(requests))]

    def attach(self, request_id: str, *, wait: float = 0.0) -> "Handle":
        """A handle on a request submitted elsewhere or earlier; see ``AsyncClient.attach``."""
        self._inner.attach(request_id)
        return Handle(self._ready, lambda now: now.attach(request_id, wait=wait), request_id)

    def close(self) -> None:
        """Close all connections and end the thread. Streams that still run fail."""
        with self._lock:
            thread, client = self._thread, self._inner
            self._thread, self._inner = None, self._make()
        if thread is not None and thread.is_alive():
            thread.run(client.aclose())
            thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _handle(self, handle: AsyncHandle) -> "Handle":
        # By name: after a fork, or once closed, the client that made it is no longer in use.
        return Handle(self._ready, lambda now: AsyncHandle(now, handle.id, handle.model), handle.id)

    def _ready(self) -> tuple[LoopThread, AsyncClient]:
        with self._lock:
            if self._process != os.getpid():
                # A fork copies neither the thread nor a connection that could be used.
                self._process, self._thread, self._inner = os.getpid(), None, self._make()
            if self._thread is None:
                self._thread = LoopThread()
            return self._thread, self._inner


class Handle:
    """One request; see ``AsyncHandle``. Every ``timeout`` is in seconds and raises ``TimeoutError``."""

    def __init__(
        self,
        ready: Callable[[], tuple[LoopThread, AsyncClient]],
        attach: Callable[[AsyncClient], AsyncHandle],
        request_id: str,
    ) -> None:
        self.id = request_id
        self._ready = ready
        self._attach = attach
        self._result: Result | None = None

    def __iter__(self) -> Iterator[Event]:
        return self.events()

    def events(self, *, seq: int = 0, pos: int = 0) -> Generator[Event]:
        """The request's events; see ``AsyncHandle.events``."""
        thread, client = self._ready()
        stream = self._attach(client).events(seq=seq, pos=pos)
        one_at_a_time = asyncio.Lock()

        async def step() -> Event | None:
            async with one_at_a_time:
                return await anext(stream, None)

        async def close() -> None:
            # An interrupted step may still be ending.
            async with one_at_a_time:
                await stream.aclose()

        try:
            while (event := thread.run(step())) is not None:
                yield event
        finally:
            if thread.is_alive():
                thread.run(close())

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the end, whichever it is; see ``AsyncHandle.result``."""
        if self._result is None:
            self._result = self._run(AsyncHandle.result, timeout)
        return self._result

    def text(self, timeout: float | None = None) -> str:
        """Wait for the whole text; see ``AsyncHandle.text``."""
        return completed_text(self.result(timeout))

    def status(self) -> RequestStatus:
        """Where the request stands now; see ``AsyncHandle.status``."""
        return self._run(AsyncHandle.status)

    def cancel(self) -> bool:
        """Ask for the request's end; see ``AsyncHandle.cancel``."""
        return self._run(AsyncHandle.cancel)

    def _run(
        self, method: Callable[[AsyncHandle], Coroutine[Any, Any, _T]], timeout: float | None = None
    ) -> _T:
        thread, client = self._ready()
        return thread.run(method(self._attach(client)), timeout)
