"""What can go wrong for a caller, apart from a request that is wrong itself (``RequestError``)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .result import Result


class HeadraceError(Exception):
    """Base of the errors below."""


class Unavailable(HeadraceError):
    """Redis cannot be reached, or refuses: longer than the client's patience, or for good.

    The request itself is unharmed: attach to its id again, or submit it again under the same id.
    """


class ServerFull(Unavailable):
    """Redis has reached its memory limit and takes nothing more."""


class QueueFull(HeadraceError):
    """The model's queue holds ``depth`` requests, running ones included, and has no room for ``wanted`` more.

    Nothing was enqueued.
    """

    def __init__(self, depth: int, limit: int, wanted: int = 1) -> None:
        more = "" if wanted == 1 else f", {wanted} more do not fit"
        super().__init__(f"the queue holds {depth} requests, the limit is {limit}{more}")
        self.depth = depth
        self.limit = limit
        self.wanted = wanted


class UnknownRequest(HeadraceError):
    """Redis has neither state nor events of this id: never submitted, expired, or lost with the data.

    Also where a submission got no further than its state, or somebody deleted its queue entry.
    Submitting it again under its id is always safe.
    """

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request {request_id} is unknown or has expired")
        self.request_id = request_id


class EventsLost(HeadraceError):
    """The request has ended and its log lacks events: somebody cut it, or Redis lost writes."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request {request_id} has ended and part of its event log is missing")
        self.request_id = request_id


class RequestFailed(HeadraceError):
    """The request ended without completing: cancelled, expired, or with an error. ``result`` has it all."""

    def __init__(self, result: "Result") -> None:
        reason = f"{result.error.code}: {result.error.message}" if result.error else result.finish_reason
        super().__init__(f"request {result.id} ended early ({reason})")
        self.result = result
