"""The fields that OpenAI's chat and text completions share, and what they mean to a worker."""

from typing import Annotated, Any, Final, cast

from pydantic import BaseModel, ConfigDict, Field

from ...protocol import Priority
from ...submission import RequestFields
from ..errors import unsupported

_INT64: Final = (1 << 63) - 1
_MAX_TOKENS: Final = 1 << 20

StopString = Annotated[str, Field(min_length=1, max_length=256)]
MaxTokens = Annotated[int, Field(ge=1, le=_MAX_TOKENS)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None
    """A last chunk with the token counts."""


class SamplingBody(BaseModel):
    """Fields of OpenAI's API with its defaults, and at the end some of Headrace's.

    What is not known is ignored; what is known, cannot be done and would change the answer is refused.
    """

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    model: str = Field(min_length=1, max_length=200)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(default=None, ge=1, le=128)
    max_tokens: MaxTokens | None = None
    temperature: float | None = Field(default=None, ge=0.0, le=2.0)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    stop: StopString | Annotated[list[StopString], Field(max_length=16)] | None = None
    seed: int | None = Field(default=None, ge=-_INT64 - 1, le=_INT64)
    presence_penalty: float | None = Field(default=None, ge=-2.0, le=2.0)
    frequency_penalty: float | None = Field(default=None, ge=-2.0, le=2.0)
    logit_bias: dict[str, float] | None = None
    """Not supported; an empty one is fine."""
    user: str | None = None
    metadata: dict[str, Any] | None = None

    top_k: int | None = Field(default=None, ge=0, le=1 << 31)
    """0 is off."""
    min_p: float | None = Field(default=None, ge=0.0, le=1.0)
    repetition_penalty: float | None = Field(default=None, gt=0.0, le=10.0)
    stop_token_ids: list[Annotated[int, Field(ge=0, lt=1 << 31)]] | None = Field(default=None, max_length=256)
    ignore_eos: bool | None = None
    priority: Priority | None = None
    """Not above that of the API key."""
    deadline: int | None = Field(default=None, ge=0, le=_INT64)
    """Unix time in milliseconds after which the answer is of no use."""
    cancel_on_disconnect: bool | None = None
    """Stop when the connection is lost, which is the default unless there is an Idempotency-Key to come back
    with. Otherwise the request goes on and can be followed again by its id."""


def sampling_fields(body: SamplingBody, max_tokens: int) -> RequestFields:
    """The request's fields, but for its prompt and its log-probabilities.

    Raises:
        ApiError: names a field that cannot be honoured.
    """
    if body.logit_bias:
        raise unsupported("logit_bias", "logit_bias: is not supported")
    if body.stream_options is not None and not body.stream:
        raise unsupported("stream_options", "stream_options: is for streams; set stream")
    given = {
        "top_p": body.top_p,
        "top_k": body.top_k,
        "min_p": body.min_p,
        "repetition_penalty": body.repetition_penalty,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "stop": [body.stop] if isinstance(body.stop, str) else body.stop,
        "stop_tokens": body.stop_token_ids,
        "ignore_eos": body.ignore_eos,
        "deadline": body.deadline,
        "metadata": body.metadata,
        "seed": body.seed,
        "priority": body.priority,
    }
    fields: RequestFields = {
        "model": body.model,
        "max_tokens": max_tokens,
        "temperature": 1.0 if body.temperature is None else body.temperature,
    }
    # The body's types are those of the fields.
    return fields | cast(RequestFields, {name: value for name, value in given.items() if value is not None})
