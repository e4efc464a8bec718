"""Access log: an id, a trace context, a log line and metrics for each HTTP request."""

import logging
import re
from secrets import token_hex
from time import perf_counter
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..streams.sse import ReaderStalled
from .metrics import Metrics
from .tracing import Begin, begin_unrecorded

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_UNLOGGED: Final = frozenset({"/healthz", "/readyz", "/metrics"})

_log = logging.getLogger("headrace.gateway.access")


class AccessLogMiddleware:
    """ASGI middleware. The outermost one. Sets ``http_id`` and ``trace`` in the request's state."""

    def __init__(self, app: ASGIApp, metrics: Metrics, begin: Begin) -> None:
        self._app = app
        self._metrics = metrics
        self._begin = begin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        http_id = given if _REQUEST_ID.match(given) else token_hex(8)
        method: str = scope.get("method", "WEBSOCKET")
        begin = begin_unrecorded if scope["path"] in _UNLOGGED else self._begin
        span = begin(method, headers.get("traceparent"))
        state: dict[str, Any] = scope.setdefault("state", {})
        state["http_id"], state["trace"] = http_id, span.traceparent
        start, status = perf_counter(), 500 if scope["type"] == "http" else 101

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = http_id
            await send(message)

        try:
            await self._app(scope, receive, observed)
        except ReaderStalled:
            _log.warning(
                "closed a stream: the client read nothing for the write timeout", extra={"http_id": http_id}
            )
        finally:
            seconds = perf_counter() - start
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(method, route, status).inc()
            self._metrics.duration.labels(route).observe(seconds)
            span.finish(route, status)
            if scope["path"] not in _UNLOGGED:
                self._write(method, route, status, seconds, state)

    def _write(self, method: str, route: str, status: int, seconds: float, state: dict[str, Any]) -> None:
        details = {
            "http_id": state["http_id"],
            "trace": state["trace"],
            "key": getattr(state.get("caller"), "key_id", None),
            "request": state.get("request_id"),
            "status": status,
            "seconds": round(seconds, 4),
        }
        _log.info("%s %s %d %.3f s", method, route, status, seconds, extra=details)
