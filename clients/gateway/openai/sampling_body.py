"""Fields shared by OpenAI's chat and text completions, and their request fields."""

from typing import Annotated, Any, Final, cast

from pydantic import BaseModel, ConfigDict, Field

from ...protocol import Priority
from ...submission import RequestFields
from ..errors import unsupported

_INT64: Final = (1 << 63) - 1
_MAX_TOKENS: Final = 1 << 20

TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
StopString = Annotated[str, Field(min_length=1, max_length=256)]
MaxTokens = Annotated[int, Field(ge=1, le=_MAX_TOKENS)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None
    """Send a last chunk with the usage."""


class SamplingBody(BaseModel):
    """Fields of OpenAI's API with its defaults, followed by Headrace's own.

    Unknown fields are ignored; known fields that are unsupported and would change the output are errors.
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
    """Not supported; an empty one is accepted."""
    user: str | None = None
    metadata: dict[str, Any] | None = None

    top_k: int | None = Field(default=None, ge=0, le=1 << 31)
    """0 is off."""
    min_p: float | None = Field(default=None, ge=0.0, le=1.0)
    repetition_penalty: float | None = Field(default=None, gt=0.0, le=10.0)
    stop_token_ids: list[TokenId] | None = Field(default=None, max_length=256)
    ignore_eos: bool | None = None
    priority: Priority | None = None
    """Not above that of the API key."""
    deadline: int | None = Field(default=None, ge=0, le=_INT64)
    """Unix time in milliseconds after which the request expires."""
    cancel_on_disconnect: bool | None = None
    """Cancel the request when the connection is lost; the default is true unless an Idempotency-Key is given.
    If false, the request continues and can be followed by its id."""


def sampling_fields(body: SamplingBody, max_tokens: int) -> RequestFields:
    """The request's fields, except prompt and log-probabilities.

    Raises:
        ApiError: names an unsupported field.
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
    # The body's types equal those of RequestFields.
    return fields | cast(RequestFields, {name: value for name, value in given.items() if value is not None})
