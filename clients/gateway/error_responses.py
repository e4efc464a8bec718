"""Exception handlers: every error of a route becomes an error response in OpenAI's format."""

import logging
from traceback import format_tb

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from ..errors import HeadraceError
from ..protocol import RequestError
from .errors import ApiError, api_error_of, error_response, internal_error, not_found, validation_error
from .gateway import gateway_of

_log = logging.getLogger(__name__)


def install(app: FastAPI) -> None:
    """Register the exception handlers on ``app``."""
    for kind in (ApiError, HeadraceError, RequestError):
        app.add_exception_handler(kind, _client_library_error)
    app.add_exception_handler(RequestValidationError, _validation_failed)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(Exception, _unexpected)


async def _client_library_error(request: Request, error: Exception) -> JSONResponse:
    return _counted_response(request, api_error_of(error) or internal_error())


async def _validation_failed(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101  registered for nothing else
    return _counted_response(request, validation_error(error.errors()))


async def _http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101  registered for nothing else
    match error.status_code:
        case 404:
            return _counted_response(request, not_found())
        case 405:
            error_405 = ApiError(405, "invalid_request_error", "There is no such method.", code="bad_method")
            response = _counted_response(request, error_405)
            response.headers.update(error.headers or {})
            return response
        case status if status < 500:
            return _counted_response(request, ApiError(status, "invalid_request_error", str(error.detail)))
        case _:
            return _counted_response(request, internal_error())


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    # Only type and stack: an error's text may hold a prompt.
    stack = "".join(format_tb(error.__traceback__))
    _log.error("%s in %s\n%s", type(error).__name__, request.url.path, stack)
    return _counted_response(request, internal_error())


def _counted_response(request: Request, error: ApiError) -> JSONResponse:
    gateway_of(request).metrics.count_error(error)
    return error_response(error)
