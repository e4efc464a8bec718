"""Requests from JSON lines, results to JSON lines."""

import json
from collections.abc import Callable, Iterable
from typing import Any, cast

import anyio

from ..async_client import AsyncClient, AsyncHandle
from ..connection import pauses
from ..errors import EventsLost, QueueFull, Unavailable, UnknownRequest
from ..protocol import Request, RequestError
from ..protocol.plain_data import first_flaw
from ..submission import RequestFields
from .record import result_record

_TIME_TO_CANCEL = 5.0


async def run_batch(
    client: AsyncClient,
    lines: Iterable[str],
    defaults: dict[str, Any],
    concurrency: int,
    write: Callable[[dict[str, Any]], None],
) -> None:
    """Submit the request of each line, at most ``concurrency`` at a time, and write each result as it comes.

    A record has ``line`` (from 1) and the result's fields, or ``line`` and an ``error`` with ``code`` and
    ``message``. ``defaults`` are fields for lines that do not have them. A full queue is waited for. When
    this is cancelled, so are the requests that have not ended.
    """
    slots = anyio.Semaphore(concurrency)
    unfinished: set[AsyncHandle] = set()

    async def serve(number: int, fields: RequestFields, prompt: str | None) -> None:
        try:
            record = await _answer(client, fields, prompt, unfinished)
        finally:
            slots.release()
        write({"line": number, **record})

    try:
        async with anyio.create_task_group() as group:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                await slots.acquire()
                try:
                    fields = defaults | _fields_of(line)
                except RequestError as error:
                    slots.release()
                    write({"line": number, "error": {"code": "invalid_request", "message": str(error)}})
                    continue
                prompt = fields.pop("prompt", None)
                group.start_soon(serve, number, cast(RequestFields, fields), prompt)
    except BaseException:
        with anyio.move_on_after(_TIME_TO_CANCEL, shield=True):
            async with anyio.create_task_group() as group:
                for handle in unfinished:
                    group.start_soon(handle.cancel)
        raise


async def _answer(
    client: AsyncClient, fields: RequestFields, prompt: str | None, unfinished: set[AsyncHandle]
) -> dict[str, Any]:
    try:
        handle = await _submit_when_there_is_room(client, fields, prompt)
        unfinished.add(handle)
        result = await handle.result()
        unfinished.discard(handle)
        return result_record(result)
    except RequestError as error:
        return {"error": {"code": "invalid_request", "message": str(error)}}
    except (UnknownRequest, EventsLost, Unavailable) as error:
        return {"error": {"code": "lost", "message": str(error)}}


async def _submit_when_there_is_room(
    client: AsyncClient, fields: RequestFields, prompt: str | None
) -> AsyncHandle:
    for pause in pauses():
        try:
            return await client.submit(prompt, **fields)
        except QueueFull:
            await anyio.sleep(pause)
    raise AssertionError("pauses never end")


def _fields_of(line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError("line", f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise RequestError("line", f"must be a JSON object, got {type(fields).__name__}")
    known = cast(dict[str, Any], fields)
    if flaw := first_flaw(known, finite=True):
        raise RequestError(flaw.field or "line", flaw.problem)
    if unknown := sorted(set(known) - set(Request.model_fields)):
        raise RequestError(unknown[0], "is no field of a request")
    return {name: value for name, value in known.items() if name != "v"}
