"""The body of ``POST /v1/chat/completions``."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..admission.request_draft import RequestDraft
from ..errors import invalid, unsupported
from .sampling_body import MaxTokens, SamplingBody, sampling_fields


class TextPart(BaseModel):
    model_config = ConfigDict(strict=True)

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """Further fields are passed to the model's chat template unchanged."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: str = Field(min_length=1, max_length=64)
    content: str | list[TextPart] | None = None


class ResponseFormat(BaseModel):
    model_config = ConfigDict(strict=True)

    type: str


class ChatBody(SamplingBody):
    messages: list[ChatMessage] = Field(min_length=1, max_length=10_000)
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    """Needs ``logprobs``."""
    response_format: ResponseFormat | None = None
    """Only ``text``."""
    tools: list[dict[str, Any]] | None = None
    """Not supported; an empty list is accepted."""


def chat_draft(body: ChatBody, default_max_tokens: int) -> RequestDraft:
    """The request draft of the body, shared by its ``n`` choices.

    Raises:
        ApiError: names an unsupported field.
    """
    if body.tools:
        raise unsupported("tools", "tools: are not supported")
    if body.response_format is not None and body.response_format.type != "text":
        raise unsupported("response_format", "response_format: only text is supported")
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs: needs logprobs to be true", "top_logprobs")
    limits = [limit for limit in (body.max_completion_tokens, body.max_tokens) if limit is not None]
    fields = sampling_fields(body, min(limits, default=default_max_tokens))
    fields["messages"] = [plain_message(message) for message in body.messages]
    if body.logprobs:
        fields["logprobs"] = body.top_logprobs or 0
    return RequestDraft(fields)


def plain_message(message: ChatMessage) -> dict[str, Any]:
    """The message for a chat template, its text parts joined by line breaks."""
    plain = message.model_dump(exclude_unset=True)
    if isinstance(message.content, list):
        plain["content"] = "\n".join(part.text for part in message.content)
    return plain
