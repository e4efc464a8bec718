"""Requests in flight, and their cancellation when the drain grace period ends."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import error_response, stopping


class InFlightRequests:
    """HTTP requests whose responses are not complete."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()

    def cancel(self) -> None:
        """Cancel all of them; each tells its client, as its kind of response can, that it is not complete."""
        for task in self.tasks:
            task.cancel()


class ShutdownMiddleware:
    """ASGI middleware. A request cancelled before its response has started gets an error response.

    A response that has started ends by its own means: a stream with an error event, a body of known length
    short.
    """

    def __init__(self, app: ASGIApp, in_flight: InFlightRequests) -> None:
        self._app = app
        self._in_flight = in_flight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        if scope["type"] != "http" or task is None:
            await self._app(scope, receive, send)
            return
        started = False

        async def observed(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        self._in_flight.tasks.add(task)
        try:
            await self._app(scope, receive, observed)
        except asyncio.CancelledError:
            if started:
                raise
            task.uncancel()
            await error_response(stopping())(scope, receive, send)
        finally:
            self._in_flight.tasks.discard(task)
