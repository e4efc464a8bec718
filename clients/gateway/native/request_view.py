"""Status and result of a request, as JSON."""

from typing import Any, Literal

from pydantic import BaseModel

from ...async_client import AsyncHandle
from ...json_values import finite_logprobs, plain
from ...protocol import FinishReason


class TimingsView(BaseModel):
    """Unix milliseconds, by Redis's clock."""

    created: int | None
    started: int | None
    first_token: int | None
    finished: int | None


class UsageView(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class ErrorView(BaseModel):
    code: str
    message: str


class ResultView(BaseModel):
    """The output; of a request that was cancelled, expired or failed, the output until then."""

    text: str
    tokens: list[int]
    finish_reason: FinishReason
    usage: UsageView
    logprobs: list[tuple[float, list[tuple[int, float]]]] | None
    metadata: Any
    error: ErrorView | None


class RequestView(BaseModel):
    id: str
    object: Literal["request"] = "request"
    status: Literal["queued", "running", "finished"]
    attempts: int
    """Above one: a worker was lost and another reclaimed the request."""
    cancelled: bool
    """Whether cancellation was requested."""
    timings: TimingsView
    result: ResultView | None
    """Set once the request has finished."""


async def view(handle: AsyncHandle) -> RequestView:
    """Raises ``UnknownRequest``, ``EventsLost`` and ``Unavailable``."""
    status = await handle.status()
    times = status.timings
    return RequestView(
        id=status.id,
        status=status.status,
        attempts=status.attempts,
        cancelled=status.cancelled,
        timings=TimingsView(
            created=times.created,
            started=times.started,
            first_token=times.first_token,
            finished=times.finished,
        ),
        result=await _result(handle) if status.status == "finished" else None,
    )


async def _result(handle: AsyncHandle) -> ResultView:
    result = await handle.result()
    usage, error = result.usage, result.error
    return ResultView(
        text=result.text,
        tokens=result.tokens,
        finish_reason=result.finish_reason,
        usage=UsageView(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
        ),
        logprobs=finite_logprobs(result.logprobs),
        metadata=plain(result.metadata),
        error=None if error is None else ErrorView(code=error.code, message=error.message),
    )
