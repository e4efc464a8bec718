"""Authentication and request limits: API keys for all of ``/v1``, hosts, WebSocket origins, body sizes.

In a middleware rather than in each route, so that a new route is protected by default.
"""

from typing import Final
from urllib.parse import SplitResult, urlsplit

import anyio
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import ApiError, error_response, forbidden, invalid, too_large
from ..gateway import Gateway
from ..json_body import check_json
from .dependencies import caller_by_key, key_in_header

_BODY_SECONDS: Final = 60.0
_UPLOADS: Final = "/v1/files"
_PROBES: Final = ("/healthz", "/readyz")
"""Probed by address rather than by host name, and without content that a foreign page must not read."""


class AuthMiddleware:
    """ASGI middleware. Sets ``caller`` in the state of each request under ``/v1``."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway
        self._settings = gateway.settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        try:
            if scope["path"] not in _PROBES:
                self._check_host(connection.headers)
            if scope["type"] == "websocket":
                self._check_origin(connection.headers)
            else:
                if scope["path"].startswith("/v1/") and scope["method"] != "OPTIONS":
                    caller = caller_by_key(self._gateway, key_in_header(connection))
                    scope["state"]["caller"] = caller
                receive = await self._bounded(scope, connection.headers, receive)
        except ApiError as error:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": error.message[:100]})
            else:
                await error_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check_host(self, headers: Headers) -> None:
        host = _split(f"//{headers.get('host', '')}").hostname or ""
        if self._settings.allowed_hosts and host not in self._settings.allowed_hosts:
            raise invalid("Host: is not among the gateway's allowed hosts", "host", "invalid_host")

    def _check_origin(self, headers: Headers) -> None:
        # The same-origin policy does not cover WebSockets; browsers only set Origin truthfully.
        origin = headers.get("origin")
        allowed = self._settings.cors_origins
        if origin is None or "*" in allowed or origin in allowed:
            return
        if _split(origin).netloc != headers.get("host"):
            raise forbidden("This origin may not open a WebSocket here.")

    async def _bounded(self, scope: Scope, headers: Headers, receive: Receive) -> Receive:
        """``receive`` with the whole body read in advance, up to its limit."""
        upload = scope["path"] == _UPLOADS
        limit = self._settings.max_upload if upload else self._settings.max_body
        length = headers.get("content-length", "0")
        if (int(length) if length.isdecimal() and len(length) < 19 else limit + 1) > limit:
            raise too_large(f"The body may have {limit} bytes.")
        if length == "0" and "transfer-encoding" not in headers:
            return receive
        body = bytearray()
        with anyio.move_on_after(_BODY_SECONDS) as waiting:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return _replay(message, receive)
                body += message.get("body", b"")
                if len(body) > limit:
                    raise too_large(f"The body may have {limit} bytes.")
                if not message.get("more_body"):
                    break
        if waiting.cancelled_caught:
            raise ApiError(408, "timeout_error", "The body did not arrive in time.", code="slow_body")
        if not upload:
            check_json(bytes(body))
        return _replay({"type": "http.request", "body": bytes(body), "more_body": False}, receive)


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        return SplitResult("", "", "", "", "")


def _replay(first: Message, receive: Receive) -> Receive:
    pending = [first]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed
