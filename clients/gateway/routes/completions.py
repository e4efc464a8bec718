"""OpenAI's ``/v1/chat/completions`` and ``/v1/completions``."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from time import monotonic

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from ...async_client import AsyncHandle
from ...result import Result
from ..access.api_keys import Caller
from ..access.dependencies import CallerDep, GatewayDep
from ..access.tenant_ids import id_for, new_id
from ..admission.request_draft import RequestDraft
from ..errors import CLIENT_CLOSED_REQUEST, invalid, stopping
from ..gateway import Gateway
from ..json_body import compact
from ..openai.chat_body import ChatBody, chat_draft
from ..openai.chat_format import ChatFormat
from ..openai.completion import Completion, Format, results_of
from ..openai.completion_body import CompletionBody, completion_drafts
from ..openai.completion_format import CompletionFormat
from ..openai.sampling_body import SamplingBody
from ..streams.delivery import abandon, cancel_others_on_failure, cancel_unfinished, count_delivered
from ..streams.position import StreamPosition
from ..streams.slots import StreamSlot
from ..streams.sse import SseResponse, frame, until_disconnect
from .idempotency import idempotency_key
from .schemas import COMPLETION_RESPONSES

router = APIRouter(tags=["OpenAI"])


@router.post("/v1/chat/completions", responses=COMPLETION_RESPONSES, summary="Continue a chat")
async def chat(request: Request, body: ChatBody, caller: CallerDep, gateway: GatewayDep) -> Response:
    drafts = [chat_draft(body, gateway.settings.default_max_tokens)]
    return await _respond(
        request, gateway, caller, body, drafts, ChatFormat(gateway.vocabularies.get(body.model))
    )


@router.post("/v1/completions", responses=COMPLETION_RESPONSES, summary="Continue a text")
async def complete(
    request: Request, body: CompletionBody, caller: CallerDep, gateway: GatewayDep
) -> Response:
    drafts = completion_drafts(body)
    return await _respond(
        request, gateway, caller, body, drafts, CompletionFormat(gateway.vocabularies.get(body.model))
    )


async def _respond(
    request: Request,
    gateway: Gateway,
    caller: Caller,
    body: SamplingBody,
    drafts: list[RequestDraft],
    form: Format,
) -> Response:
    n = body.n or 1
    limit = min(gateway.settings.max_choices, gateway.settings.queue_limit)
    if len(drafts) * n > limit:
        raise invalid(f"n: times the number of prompts must be at most {limit}", "n")
    choices = [draft.choice(index) for draft in drafts for index in range(n)]
    if not body.stream:
        return await _submit(request, gateway, caller, body, choices, form, None)
    # Before enqueueing: a refused stream must not leave requests running.
    slot = gateway.slots.take(caller, resumable=False)
    try:
        return await _submit(request, gateway, caller, body, choices, form, slot)
    except BaseException:
        slot.close()
        raise


async def _submit(
    request: Request,
    gateway: Gateway,
    caller: Caller,
    body: SamplingBody,
    choices: list[RequestDraft],
    form: Format,
    slot: StreamSlot | None,
) -> Response:
    """Submit the drafts; respond with a stream in ``slot``, or with one object without a slot."""
    key = await idempotency_key(request)
    first = new_id(caller.tenant) if key is None else id_for(caller.tenant, b"request", key)
    requests = await gateway.admission.admit(caller, body.model, choices, first, request.state.trace)
    started = monotonic()
    handles = await gateway.admission.submit(requests, repeatable=key is not None)
    request.state.request_id = handles[0].id
    gateway.metrics.submitted.labels(body.model).inc(len(handles))
    usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    completion = Completion(handles[0].id, body.model, await gateway.clock.now(), form, body.n or 1, usage)
    # Without an idempotency key the client cannot come back for the result.
    cancels = key is None if body.cancel_on_disconnect is None else body.cancel_on_disconnect
    if slot is None:
        return await _whole(request, completion, handles, cancels=cancels)

    def frames(leave: asyncio.Future[None]) -> AsyncGenerator[bytes]:
        sources = [
            count_delivered(cancel_others_on_failure(handle, handles), gateway.metrics, started)
            for handle in handles
        ]
        stream = completion.stream(sources, StreamPosition(), gateway.settings.heartbeat, leave)
        return cancel_unfinished(stream, completion.ended, handles) if cancels else stream

    return SseResponse(
        frames,
        slot,
        gateway.settings.write_timeout,
        {"x-headrace-request": handles[0].id},
        last_frame=frame(compact(stopping().body)),
    )


async def _whole(
    request: Request,
    completion: Completion,
    handles: Sequence[AsyncHandle],
    *,
    cancels: bool,
) -> Response:
    results = None
    try:
        with until_disconnect(request.receive) as leave:
            results = await _results_unless_disconnected(handles, leave)
    finally:
        if results is None and cancels:
            await abandon(handles)
    if results is None:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    return JSONResponse(completion.whole(results), headers={"x-headrace-request": completion.id})


async def _results_unless_disconnected(
    handles: Sequence[AsyncHandle], leave: asyncio.Future[None]
) -> list[Result] | None:
    """As ``results_of``, or None if ``leave`` is done before."""
    task = asyncio.create_task(results_of(handles))
    try:
        await asyncio.wait([task, leave], return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
