"""The body of ``POST /v1/completions``."""

from typing import Annotated

from pydantic import Field

from ...submission import RequestFields
from ..admission.request_draft import RequestDraft
from ..errors import unsupported
from .sampling_body import SamplingBody, TokenId, sampling_fields

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default."""

Text = Annotated[str, Field(min_length=1)]
Tokens = Annotated[list[TokenId], Field(min_length=1)]


class CompletionBody(SamplingBody):
    prompt: (
        Text
        | Tokens
        | Annotated[list[Text], Field(min_length=1)]
        | Annotated[list[Tokens], Field(min_length=1)]
    )
    """A text, a list of texts, a list of token ids, or a list of lists of token ids."""
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    """Not supported."""
    suffix: str | None = None
    """Not supported."""
    best_of: int | None = None
    """Not supported beyond ``n``."""


def completion_drafts(body: CompletionBody) -> list[RequestDraft]:
    """One draft for each prompt.

    Raises:
        ApiError: names an unsupported field.
    """
    if body.echo:
        raise unsupported("echo", "echo: is not supported")
    if body.suffix:
        raise unsupported("suffix", "suffix: is not supported")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise unsupported("best_of", "best_of: must be n, if anything")
    fields = sampling_fields(body, DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens)
    if body.logprobs is not None:
        fields["logprobs"] = body.logprobs
    prompt = body.prompt
    if isinstance(prompt, str):
        return [RequestDraft(fields, prompt)]
    tokens = [item for item in prompt if isinstance(item, int)]
    if tokens:
        return [RequestDraft(fields | RequestFields(tokens=tokens))]
    return [
        RequestDraft(fields, item)
        if isinstance(item, str)
        else RequestDraft(fields | RequestFields(tokens=item))
        for item in prompt
        if not isinstance(item, int)
    ]
