"""FastAPI dependencies: a request's caller, the gateway, and requests that the caller owns."""

from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import HTTPConnection

from ...async_client import AsyncHandle
from ...protocol.keys import REQUEST_ID
from ..errors import forbidden, unauthorized, unknown_request
from ..gateway import Gateway, gateway_of
from .api_keys import ANYBODY, Caller

_bearer = HTTPBearer(auto_error=False, description="An API key; not needed where the gateway has none.")


def caller_by_key(gateway: Gateway, key: str | None) -> Caller:
    """Raises ``ApiError`` 401."""
    if gateway.keys is None:
        return ANYBODY
    caller = gateway.keys.caller(key) if key else None
    if caller is None:
        raise unauthorized()
    return caller


def key_in_header(connection: HTTPConnection) -> str | None:
    scheme, _, key = connection.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None


def _caller(
    request: Request, _described: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
) -> Caller:
    return request.state.caller  # set by AuthMiddleware on every path under /v1


def _admin(caller: Annotated[Caller, Depends(_caller)]) -> Caller:
    if not caller.admin:
        raise forbidden("This needs an API key with admin = true.")
    return caller


def _gateway(request: Request) -> Gateway:
    return gateway_of(request)


CallerDep = Annotated[Caller, Depends(_caller)]
AdminDep = Annotated[Caller, Depends(_admin)]
GatewayDep = Annotated[Gateway, Depends(_gateway)]


def own_handle(gateway: Gateway, caller: Caller, request_id: str) -> AsyncHandle:
    """A handle on a request that the caller owns.

    Raises:
        ApiError: 404, if it is another tenant's or the id is invalid.
    """
    if not REQUEST_ID.match(request_id) or not caller.owns(request_id):
        raise unknown_request()
    return gateway.client.attach(request_id)
