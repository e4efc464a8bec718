"""Response models of the OpenAPI document."""

from typing import Any, Literal

from pydantic import BaseModel


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """Format of every error, which is OpenAI's."""

    error: ErrorBody


class UsageBody(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]


class CompletionObject(BaseModel):
    """A chat completion or text completion, as OpenAI documents them."""

    id: str
    object: Literal["chat.completion", "text_completion"]
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: UsageBody


class ModelObject(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelObject]


class TimeObject(BaseModel):
    """Unix milliseconds."""

    object: Literal["time"] = "time"
    now: int


class WebhookSecret(BaseModel):
    """For the verifiers of Standard Webhooks."""

    secret: str


class FileObject(BaseModel):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"


class FileList(BaseModel):
    """The complete list, in one page."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    has_more: Literal[False] = False


class Deleted(BaseModel):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class BatchCounts(BaseModel):
    total: int
    completed: int
    failed: int


class BatchObject(BaseModel):
    """Times are in Unix seconds."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: dict[str, Any] | None = None
    """The batch's own errors, if it failed."""
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    expires_at: int
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    expired_at: int | None = None
    request_counts: BatchCounts
    metadata: dict[str, str] | None


class BatchList(BaseModel):
    """The complete list, in one page."""

    object: Literal["list"] = "list"
    data: list[BatchObject]
    has_more: Literal[False] = False


Responses = dict[int | str, dict[str, Any]]

_DESCRIPTIONS = {
    400: "A field is wrong; `param` names it.",
    401: "The API key is missing or not valid.",
    403: "The API key may not do this.",
    404: "It does not exist, or belongs to another tenant.",
    408: "The body did not arrive in time.",
    409: "Its state does not allow this.",
    413: "The body or the prompt is too large.",
    429: "The API key's rate limit is reached or the queue is full; `Retry-After` is when to retry.",
    499: "The request was cancelled by another call.",
    500: "The worker or the gateway failed.",
    503: "No worker is alive for the model, or the queue cannot be reached.",
    504: "The request's deadline passed.",
}


def errors(*statuses: int) -> Responses:
    """The error responses of a route; 400, 401, 500 and 503 are always among them."""
    return {
        status: {"model": ErrorResponse, "description": _DESCRIPTIONS[status]}
        for status in sorted({400, 401, 500, 503, *statuses})
    }


EVENT_STREAM: dict[str, Any] = {
    "text/event-stream": {
        "schema": {
            "description": "One event; `data` is JSON, `id` the stream position after it.",
            "type": "object",
            "properties": {name: {"type": "string"} for name in ("event", "data", "id")},
        }
    }
}

COMPLETION_RESPONSES: Responses = errors(404, 408, 413, 429, 499, 504) | {
    200: {
        "model": CompletionObject,
        "description": "The completion; with `stream`, chunks of it as server-sent events.",
        "content": EVENT_STREAM,
    },
}
