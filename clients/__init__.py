"""What a backend imports: submit requests to workers, follow them, cancel them. Imports no torch."""

from .async_client import AsyncClient, AsyncHandle
from .client import Client, Handle
from .errors import (
    EventsLost,
    HeadraceError,
    QueueFull,
    RequestFailed,
    ServerFull,
    Unavailable,
    UnknownRequest,
)
from .protocol import (
    Delta,
    Done,
    ErrorInfo,
    Event,
    FinishReason,
    Message,
    Request,
    RequestError,
    TokenLogprobs,
    Usage,
    make_request,
)
from .request_state import RequestStatus
from .result import Result, Timings

__all__ = [
    "AsyncClient",
    "AsyncHandle",
    "Client",
    "Delta",
    "Done",
    "ErrorInfo",
    "Event",
    "EventsLost",
    "FinishReason",
    "Handle",
    "HeadraceError",
    "Message",
    "QueueFull",
    "Request",
    "RequestError",
    "RequestFailed",
    "RequestStatus",
    "Result",
    "ServerFull",
    "Timings",
    "TokenLogprobs",
    "Unavailable",
    "UnknownRequest",
    "Usage",
    "make_request",
]
