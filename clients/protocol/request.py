"""Requests: what a client asks for, validated at the edge on both sides of the queue.

A request is a msgpack map in a queue entry's ``r`` field. Fields this version does not know are ignored, so
old workers serve new clients.
"""

from contextlib import suppress
from typing import Annotated, Any, Final, cast

import msgpack
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from .keys import MODEL_NAME, REQUEST_ID, Priority
from .plain_data import Flaw, first_flaw

VERSION: Final = 1

MAX_BYTES: Final = 8 << 20
"""Largest accepted queue entry, in bytes of msgpack."""
MAX_PROMPT_BYTES: Final = 4 << 20
MAX_TOKENS_IN_PROMPT: Final = 1 << 20
MAX_METADATA_BYTES: Final = 16 << 10

_INT64: Final = (1 << 63) - 1

TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
StopString = Annotated[str, Field(min_length=1, max_length=256)]


class RequestError(ValueError):
    """A request that cannot be accepted: which field, and what it may be.

    ``request_id`` is the id where one could be read from the rejected bytes.
    """

    def __init__(self, field: str, problem: str, request_id: str | None = None) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.request_id = request_id


class Message(BaseModel):
    """One message of a chat. Further fields are handed to the model's chat template as they are."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    role: str = Field(min_length=1, max_length=64)
    content: str | None = None


class Request(BaseModel):
    """One request for tokens. Exactly one of ``prompt``, ``messages`` and ``tokens`` is given."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)

    v: int = Field(default=VERSION, ge=1, le=VERSION)
    id: str
    model: str
    prompt: str | None = Field(default=None, min_length=1)
    messages: list[Message] | None = Field(default=None, min_length=1, max_length=10_000)
    tokens: list[TokenId] | None = Field(default=None, min_length=1, max_length=MAX_TOKENS_IN_PROMPT)
    max_tokens: int = Field(default=256, ge=1, le=MAX_TOKENS_IN_PROMPT)
    temperature: float = Field(default=0.0, ge=0.0, le=100.0)
    """0 picks the most likely token."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=0, le=1 << 31)
    """0 is off."""
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    repetition_penalty: float = Field(default=1.0, gt=0.0, le=10.0)
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    seed: int | None = Field(default=None, ge=-_INT64 - 1, le=_INT64)
    """Without one, the request's id decides."""
    stop: list[StopString] = Field(default_factory=list[str], max_length=16)
    stop_tokens: list[TokenId] = Field(default_factory=list[int], max_length=256)
    ignore_eos: bool = False
    logprobs: int | None = Field(default=None, ge=0, le=20)
    """How many of the most likely tokens to report beside each token's own log-probability."""
    priority: Priority = "normal"
    deadline: int | None = Field(default=None, ge=0, le=_INT64)
    """Unix time in milliseconds, by Redis's clock."""
    tenant: str | None = Field(default=None, min_length=1, max_length=256)
    metadata: Any = None
    """Echoed in ``done``."""
    trace: str | None = Field(default=None, max_length=256)
    """W3C traceparent."""

    @field_validator("id")
    @classmethod
    def _id_names_a_key(cls, value: str) -> str:
        if not REQUEST_ID.match(value):
            raise ValueError("must be 1 to 128 of the characters A-Z a-z 0-9 _ -")
        return value

    @field_validator("model")
    @classmethod
    def _model_names_a_key(cls, value: str) -> str:
        if not MODEL_NAME.match(value):
            raise ValueError("must be 1 to 200 of the characters A-Z a-z 0-9 . _ : / @ + -")
        return value

    @field_validator("prompt")
    @classmethod
    def _prompt_is_text_of_bounded_size(cls, value: str | None) -> str | None:
        if value is not None and (size := _utf8_size(value)) > MAX_PROMPT_BYTES:
            raise ValueError(f"must be at most {MAX_PROMPT_BYTES} bytes of UTF-8, got {size}")
        return value

    @field_validator("tenant")
    @classmethod
    def _tenant_is_text(cls, value: str | None) -> str | None:
        if value is not None:
            _utf8_size(value)
        return value

    @field_validator("metadata")
    @classmethod
    def _metadata_is_small(cls, value: Any) -> Any:
        if flaw := first_flaw(value):
            raise ValueError(flaw.problem)
        size = len(_packed(value))
        if size > MAX_METADATA_BYTES:
            raise ValueError(f"must be at most {MAX_METADATA_BYTES} bytes of msgpack, got {size}")
        return value

    @model_validator(mode="after")
    def _has_one_prompt(self) -> "Request":
        given = [name for name in ("prompt", "messages", "tokens") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"exactly one of prompt, messages and tokens is needed, got {given or 'none'}")
        return self


def make_request(**fields: Any) -> Request:
    """A validated request.

    Raises:
        RequestError: names the first field that is wrong and its limit.
    """
    return _validate(fields, _readable_id(fields.get("id")))


def encode_request(request: Request) -> bytes:
    """The bytes for a queue entry's ``r`` field: only what differs from the defaults, and ``v``.

    Raises:
        RequestError: the request is larger than ``MAX_BYTES``, or holds what msgpack cannot carry.
    """
    try:
        data = _packed({"v": VERSION, **request.model_dump(exclude_defaults=True)})
    except ValueError as error:
        fields = {name: value for name, value in request if name != "messages"}
        fields["messages"] = [dict(message) for message in request.messages or ()]
        flaw = first_flaw(fields) or Flaw("request", str(error))
        raise RequestError(flaw.field, flaw.problem, request.id) from None
    if len(data) > MAX_BYTES:
        raise RequestError("request", f"must be at most {MAX_BYTES} bytes, got {len(data)}", request.id)
    return data


def decode_request(data: bytes) -> Request:
    """The request in a queue entry.

    Raises:
        RequestError: with ``request_id`` wherever the id could still be read, so that its client gets a
            ``done``; without one the entry can only be logged and dead-lettered.
    """
    if len(data) > MAX_BYTES:
        problem = f"must be at most {MAX_BYTES} bytes, got {len(data)}"
        raise RequestError("request", problem, _salvage_id(data))
    try:
        body = msgpack.unpackb(data)
    except UnicodeDecodeError:
        raise _not_unicode(data) from None
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        # Not the error's repr: that of a UnicodeDecodeError holds the user's text.
        problem = f"not msgpack: {str(error) or type(error).__name__:.200}"
        raise RequestError("request", problem, _salvage_id(data)) from None
    if not isinstance(body, dict):
        raise RequestError("request", f"must be a map, got {type(body).__name__}")
    fields = cast(dict[Any, Any], body)
    known = {name: fields[name] for name in Request.model_fields if name in fields}
    return _validate(known, _readable_id(fields.get("id")))


def _not_unicode(data: bytes) -> RequestError:
    request_id = _salvage_id(data)
    with suppress(ValueError, TypeError, msgpack.UnpackException, RecursionError):
        flaw = first_flaw(msgpack.unpackb(data, unicode_errors="surrogateescape"))
        if flaw is not None:
            return RequestError(flaw.field or "request", "must be valid UTF-8", request_id)
    return RequestError("request", "not msgpack: has text that is not UTF-8", request_id)


def _validate(fields: dict[str, Any], request_id: str | None) -> Request:
    try:
        return Request.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "request"
        problem = first["msg"].removeprefix("Value error, ")
        name = first["loc"][0] if first["loc"] else ""
        if (first["type"] == "string_unicode" or name == "metadata") and (
            flaw := first_flaw({name: fields.get(str(name))})
        ):
            raise RequestError(flaw.field, flaw.problem, request_id) from None
        if first["type"] not in ("missing", "value_error"):
            problem += f", got {_described(first['input'])}"
        raise RequestError(field, problem, request_id) from None


def _packed(value: object) -> bytes:
    """Msgpack that the other side can read back: what packs is not always what unpacks."""
    try:
        data = cast(bytes, msgpack.packb(value))
        msgpack.unpackb(data)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException, RecursionError) as error:
        raise ValueError(f"must be plain msgpack data: {str(error) or type(error).__name__}") from None
    return data


def _described(value: object) -> str:
    # Numbers only: text is the user's, and errors are logged.
    return repr(value)[:40] if isinstance(value, int | float) else type(value).__name__


def _utf8_size(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise ValueError("must be valid Unicode without lone surrogates") from None


def _readable_id(value: object) -> str | None:
    return value if isinstance(value, str) and REQUEST_ID.match(value) else None


def _salvage_id(data: bytes) -> str | None:
    """Read a map's leading fields one by one until the id, from bytes that do not decode as a whole."""
    unpacker = msgpack.Unpacker(raw=True, max_buffer_size=len(data) + 1)
    unpacker.feed(data)
    try:
        for _ in range(unpacker.read_map_header()):
            key = unpacker.unpack()
            if key == b"id":
                value = unpacker.unpack()
                return _readable_id(value.decode(errors="replace")) if isinstance(value, bytes) else None
            unpacker.skip()
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError):
        pass
    return None
