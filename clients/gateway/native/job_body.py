"""The body of ``POST /v1/requests``: a request in the queue's own fields."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ...protocol import Priority
from ...submission import RequestFields
from ..admission.request_draft import RequestDraft
from ..openai.chat_body import ChatMessage, plain_message
from ..openai.sampling_body import MaxTokens, StopString, TokenId


class JobBody(BaseModel):
    """Exactly one of ``prompt``, ``messages`` and ``tokens`` is required. Defaults are the queue's."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    model: str = Field(min_length=1, max_length=200)
    prompt: Annotated[str, Field(min_length=1)] | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=10_000)] | None = None
    tokens: Annotated[list[TokenId], Field(min_length=1)] | None = None
    max_tokens: MaxTokens | None = None
    temperature: float | None = Field(default=None, ge=0.0, le=100.0)
    """0, the default, picks the most likely token."""
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    top_k: int | None = Field(default=None, ge=0, le=1 << 31)
    min_p: float | None = Field(default=None, ge=0.0, le=1.0)
    repetition_penalty: float | None = Field(default=None, gt=0.0, le=10.0)
    presence_penalty: float | None = Field(default=None, ge=-2.0, le=2.0)
    frequency_penalty: float | None = Field(default=None, ge=-2.0, le=2.0)
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    stop: Annotated[list[StopString], Field(max_length=16)] | None = None
    stop_tokens: Annotated[list[TokenId], Field(max_length=256)] | None = None
    ignore_eos: bool | None = None
    logprobs: int | None = Field(default=None, ge=0, le=20)
    priority: Priority | None = None
    """Not above that of the API key."""
    deadline: int | None = Field(default=None, ge=0, lt=1 << 63)
    """Unix time in milliseconds."""
    metadata: Any = None
    """Returned with the result."""
    webhook: Annotated[str, Field(max_length=2048)] | None = None
    """A URL that receives a POST when the request has ended; its origin must be allowed by the operator."""


def job_draft(body: JobBody) -> RequestDraft:
    """The request draft of the body."""
    fields: dict[str, Any] = body.model_dump(exclude_none=True, exclude={"prompt", "messages", "webhook"})
    if body.messages is not None:
        fields["messages"] = [plain_message(message) for message in body.messages]
    return RequestDraft(RequestFields(**fields), body.prompt)
