"""Every failure of a route, answered in one shape."""

import logging
from traceback import format_tb

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from ..errors import HeadraceError
from ..protocol import RequestError
from .errors import ApiError, api_error_of, error_response, not_found, validation_error
from .gateway import gateway_of

_log = logging.getLogger(__name__)


def install(app: FastAPI) -> None:
    """Make ``app`` answer errors in OpenAI's shape."""
    for kind in (ApiError, HeadraceError, RequestError):
        app.add_exception_handler(kind, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _by_status)
    app.add_exception_handler(Exception, _unexpected)


async def _known(request: Request, error: Exception) -> JSONResponse:
    return _answer(request, api_error_of(error) or _internal())


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101  registered for nothing else
    return _answer(request, validation_error(error.errors()))


async def _by_status(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101  registered for nothing else
    match error.status_code:
        case 404:
            return _answer(request, not_found())
        case 405:
            answer = ApiError(405, "invalid_request_error", "There is no such method.", code="bad_method")
            response = _answer(request, answer)
            response.headers.update(error.headers or {})
            return response
        case status if status < 500:
            return _answer(request, ApiError(status, "invalid_request_error", str(error.detail)))
        case _:
            return _answer(request, _internal())


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    # Only the kind and the place: an error's text may hold a prompt.
    places = "".join(format_tb(error.__traceback__))
    _log.error("%s in %s\n%s", type(error).__name__, request.url.path, places)
    return _answer(request, _internal())


def _answer(request: Request, error: ApiError) -> JSONResponse:
    gateway_of(request).metrics.refused.labels(error.code or str(error.status)).inc()
    return error_response(error)


def _internal() -> ApiError:
    return ApiError(500, "server_error", "Something went wrong in the gateway.", code="internal_error")
