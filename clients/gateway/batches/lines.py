"""Lines of a batch: parsing of input lines, and lines of the output and error files."""

from contextlib import suppress
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..admission.request_draft import RequestDraft
from ..errors import ApiError, first_problem, invalid, too_large, validation_error
from ..json_body import compact, parse_json
from ..openai.chat_body import ChatBody, chat_draft
from ..openai.completion_body import CompletionBody, completion_drafts
from ..openai.sampling_body import SamplingBody

CHAT: Final = "/v1/chat/completions"
TEXT: Final = "/v1/completions"
ENDPOINTS: Final = (CHAT, TEXT)

_INCOMPLETE: Final = {
    "cancelled": ("batch_cancelled", "The batch was cancelled before this request completed."),
    "expired": ("batch_expired", "The completion window closed before this request completed."),
    "failed": ("input_file_lost", "The batch's input file was lost before this request completed."),
}
"""Code and message, by the batch's final status."""


class _Line(BaseModel):
    model_config = ConfigDict(strict=True)

    custom_id: str = Field(min_length=1, max_length=512)
    method: str
    url: str
    body: dict[str, Any]


def split_lines(content: bytes, max_lines: int) -> list[bytes]:
    """The lines of an upload, without empty ones.

    Raises:
        ApiError: naming the first invalid line. A line's ``body`` is validated when it is run.
    """
    lines = [line for line in content.splitlines() if line.strip()]
    if not lines:
        raise invalid("file: has no lines", "file")
    if len(lines) > max_lines:
        raise too_large(f"file: may have {max_lines} lines, has {len(lines)}", "file")
    seen: set[str] = set()
    for number, line in enumerate(lines, 1):
        parsed = parse_line(line, f"file: line {number}")
        if parsed.custom_id in seen:
            raise invalid(f"file: line {number}: custom_id is used by an earlier line", "file")
        seen.add(parsed.custom_id)
    return lines


def parse_line(line: bytes, place: str) -> _Line:
    """Raises ``ApiError`` that names ``place`` and the problem."""
    try:
        parsed = _Line.model_validate(parse_json(line, "line"))
    except ApiError as error:
        problem = "is not JSON" if error.code == "invalid_json" else error.message
        raise invalid(f"{place}: {problem}", "file") from None
    except ValidationError as error:
        raise invalid(f"{place}: {first_problem(error, 'line')}", "file") from None
    if parsed.method != "POST" or parsed.url not in ENDPOINTS:
        raise invalid(f"{place}: must be a POST to {' or '.join(ENDPOINTS)}", "file")
    return parsed


def drafts_of(line: _Line, default_max_tokens: int) -> tuple[SamplingBody, list[RequestDraft]]:
    """The body of a line, and its request drafts: one for each prompt and choice.

    Raises:
        ApiError: as the endpoint raises it.
    """
    try:
        if line.url == CHAT:
            chat = ChatBody.model_validate(line.body)
            body, drafts = chat, [chat_draft(chat, default_max_tokens)]
        else:
            text = CompletionBody.model_validate(line.body)
            body, drafts = text, completion_drafts(text)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        in_body = [{**problem, "loc": ("body", *problem["loc"])} for problem in problems]
        raise validation_error(in_body) from None
    if body.stream:
        raise invalid("stream: not supported in batches", "stream")
    return body, [draft.choice(index) for draft in drafts for index in range(body.n or 1)]


def output_line(line_id: str, custom_id: str, request_id: str, body: dict[str, Any]) -> bytes:
    """A line of the output file."""
    response = {"status_code": 200, "request_id": request_id, "body": body}
    return compact({"id": line_id, "custom_id": custom_id, "response": response, "error": None})


def error_line(line_id: str, custom_id: str, request_id: str, error: ApiError) -> bytes:
    """A line of the error file."""
    response = {"status_code": error.status, "request_id": request_id, "body": error.body}
    error_object = {"code": error.code, "message": error.message}
    return compact({"id": line_id, "custom_id": custom_id, "response": response, "error": error_object})


def incomplete_line(line_id: str, line: bytes | None, ending: str) -> bytes:
    """A line of the error file, for a request that had not completed when its batch ended."""
    code, message = _INCOMPLETE[ending]
    custom_id = None
    if line is not None:
        with suppress(ApiError):
            custom_id = parse_line(line, "line").custom_id
    error_object = {"code": code, "message": message}
    return compact({"id": line_id, "custom_id": custom_id, "response": None, "error": error_object})


def input_lost() -> dict[str, Any]:
    """A failed batch's ``errors``."""
    code, message = _INCOMPLETE["failed"]
    return {
        "object": "list",
        "data": [{"code": code, "message": message, "param": "input_file_id", "line": None}],
    }
