"""HTTP errors in the format of OpenAI's API."""

from collections.abc import Sequence
from typing import Any, Final

from pydantic import ValidationError
from starlette.responses import JSONResponse

from ..errors import EventsLost, QueueFull, ServerFull, Unavailable, UnknownRequest
from ..protocol import ErrorInfo, RequestError

_WORKER_ERRORS = frozenset({"invalid_request", "invalid_input", "unknown_model"})
"""A worker's error codes that mean an invalid request."""


CLIENT_CLOSED_REQUEST: Final = 499
"""Not HTTP's, but what nginx logs and what gRPC's CANCELLED is over HTTP."""


class ApiError(Exception):
    """An error response: an HTTP ``status`` and OpenAI's error object.

    ``param`` names the invalid field, ``code`` is a stable identifier for programs.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.code = code
        self.param = param
        self.retry_after = retry_after

    @property
    def body(self) -> dict[str, Any]:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}

    @property
    def headers(self) -> dict[str, str]:
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


def error_response(error: ApiError) -> JSONResponse:
    return JSONResponse(error.body, error.status, error.headers)


def invalid(message: str, param: str | None = None, code: str | None = "invalid_value") -> ApiError:
    return ApiError(400, "invalid_request_error", message, param=param, code=code)


def internal_error() -> ApiError:
    return ApiError(500, "server_error", "Internal error in the gateway.", code="internal_error")


def unsupported(param: str, message: str) -> ApiError:
    return invalid(message, param, "unsupported_parameter")


def unauthorized() -> ApiError:
    message = "An API key is needed: Authorization: Bearer KEY. The one given is missing or not valid."
    return ApiError(401, "authentication_error", message, code="invalid_api_key")


def forbidden(message: str) -> ApiError:
    return ApiError(403, "permission_error", message, code="forbidden")


def not_found(message: str = "Not found.") -> ApiError:
    return ApiError(404, "not_found_error", message, code="not_found")


def unknown_request() -> ApiError:
    """The same for a request that never existed, has expired, or belongs to another tenant."""
    return not_found("There is no such request, or it has expired.")


def unknown_model(model: str) -> ApiError:
    message = f"The model {model[:200]!r} is not served here."
    return ApiError(404, "not_found_error", message, code="model_not_found", param="model")


def too_large(message: str, param: str | None = None) -> ApiError:
    return ApiError(413, "invalid_request_error", message, code="request_too_large", param=param)


def rate_limited(message: str, retry_after: int, code: str = "rate_limit_exceeded") -> ApiError:
    return ApiError(429, "rate_limit_error", message, code=code, retry_after=retry_after)


def queue_full(error: QueueFull, retry_after: int) -> ApiError:
    more = "" if error.wanted == 1 else f", and {error.wanted} more do not fit"
    message = f"The queue is full: it holds {error.depth} requests, the limit is {error.limit}{more}."
    return rate_limited(message, retry_after, "queue_full")


def unavailable(message: str, code: str, retry_after: int = 5) -> ApiError:
    return ApiError(503, "service_unavailable_error", message, code=code, retry_after=retry_after)


def no_worker(model: str) -> ApiError:
    return unavailable(f"No worker is alive for the model {model!r}.", "no_worker", 10)


def stopping() -> ApiError:
    """The error of a response that is incomplete when the drain grace period ends."""
    return unavailable("The gateway stopped before the response was complete.", "gateway_stopping", 1)


def worker_error(error: ErrorInfo | None) -> ApiError:
    """The error response of a request that ended with ``error``."""
    if error is None:
        return ApiError(500, "server_error", "The request ended with an error.", code="error")
    if error.code in _WORKER_ERRORS:
        field = error.message.partition(":")[0]
        param = field if field.replace(".", "_").isidentifier() else None
        return invalid(error.message, param, error.code)
    return ApiError(500, "server_error", error.message, code=error.code)


def cancelled() -> ApiError:
    """A status that OpenAI's SDKs do not retry."""
    return ApiError(
        CLIENT_CLOSED_REQUEST, "cancelled_error", "The request was cancelled.", code="request_cancelled"
    )


def expired() -> ApiError:
    return ApiError(504, "timeout_error", "The request's deadline passed.", code="deadline_exceeded")


def first_problem(error: ValidationError, without_field: str = "") -> str:
    """``field: message`` of the first invalid field; ``without_field`` names the value as a whole."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or without_field}: {first['msg']}"


def validation_error(problems: Sequence[Any]) -> ApiError:
    """The error of the first invalid field; failed alternatives of a union are reported together."""
    first = list(problems[0]["loc"])
    alternatives = [problem for problem in problems if list(problem["loc"])[:2] == first[:2]]
    shared = first
    for problem in alternatives:
        location = list(problem["loc"])
        shared = [part for part, other in zip(shared, location, strict=False) if part == other]
    if problems[0]["type"] == "json_invalid":
        return invalid("The body is not valid JSON.", None, "invalid_json")
    param = ".".join(str(part) for part in shared[1:]) or None
    param = None if param is None else param[:200]
    expected = list(dict.fromkeys(problem["msg"].removeprefix("Value error, ") for problem in alternatives))
    message = f"{param or shared[0]}: {', or '.join(expected)}"
    code = "missing_required_parameter" if problems[0]["type"] == "missing" else "invalid_value"
    return invalid(message[:500], param, code)


def api_error_of(error: Exception) -> ApiError | None:
    """The error response for an error of the client library; None for any other."""
    match error:
        case ApiError():
            return error
        case RequestError():
            problem = str(error).removeprefix(f"{error.field}: ")
            return invalid(f"{error.field}: {problem}", error.field)
        case UnknownRequest():
            return unknown_request()
        case EventsLost():
            return ApiError(500, "server_error", "Part of the request's output was lost.", code="events_lost")
        case ServerFull():
            return unavailable("The queue's server is full: it has no memory for more.", "queue_server_full")
        case Unavailable():
            return unavailable("The queue cannot be reached at the moment.", "queue_unavailable")
        case _:
            return None
