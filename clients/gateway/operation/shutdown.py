"""What those are told whose answer the gateway does not live to see."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..error_responses import error_response
from ..errors import stopping
from .in_flight import Answers


class Farewell:
    """ASGI middleware. A request whose answer has not begun when it is cut gets an error with a status.

    One that has begun is its own matter: a stream ends with an error, a body of a known length ends short.
    """

    def __init__(self, app: ASGIApp, answers: Answers) -> None:
        self._app = app
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        if scope["type"] != "http" or task is None:
            await self._app(scope, receive, send)
            return
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        self._answers.tasks.add(task)
        try:
            await self._app(scope, receive, noted)
        except asyncio.CancelledError:
            if begun:
                raise
            task.uncancel()
            await error_response(stopping())(scope, receive, send)
        finally:
            self._answers.tasks.discard(task)
