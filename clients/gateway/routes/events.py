"""``/v1/requests/{id}/events`` and ``/v1/ws``: follow requests from any position, at any gateway."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, WebSocket
from starlette.responses import Response

from ..access.dependencies import CallerDep, GatewayDep, own_handle
from ..gateway import gateway_of
from ..native.events import native_frames
from ..native.socket_session import SocketSession
from ..openai.chat_format import ChatFormat
from ..openai.completion import Completion
from ..openai.completion_format import CompletionFormat
from ..streams.delivery import count_delivered
from ..streams.position import StreamPosition
from ..streams.sse import SseResponse
from .schemas import EVENT_STREAM, errors

router = APIRouter(tags=["Requests"])

_RESPONSES: dict[int | str, dict[str, Any]] = errors(404, 429) | {
    200: {"description": "The events after the position, ending with `done`.", "content": EVENT_STREAM},
    204: {"description": "The position is that of `done`: there are no further events."},
}


@router.get(
    "/v1/requests/{request_id}/events",
    responses=_RESPONSES,
    response_class=Response,
    summary="Follow a request's events, from any position",
)
async def follow(
    request: Request,
    request_id: str,
    caller: CallerDep,
    gateway: GatewayDep,
    after: Annotated[str | None, Query(description="Id of the last event received.", max_length=32)] = None,
    last_event_id: Annotated[str | None, Header(max_length=32)] = None,
    format: Annotated[  # noqa: A002  the name of the query parameter
        Literal["native", "chat", "completion"], Query(description="Format of the events.")
    ] = "native",
) -> Response:
    handle = own_handle(gateway, caller, request_id)
    # A browser that reconnects repeats the URL and adds the header, so the header is the later position.
    position = StreamPosition.parse(last_event_id or after)
    status = await handle.status()
    if position.ended:
        return Response(status_code=204)
    request.state.request_id = request_id
    heartbeat = gateway.settings.heartbeat

    def frames(leave: asyncio.Future[None]) -> AsyncGenerator[bytes]:
        if format == "native":
            events = handle.events(seq=position.tokens, pos=position.characters)
            return native_frames(count_delivered(events, gateway.metrics, None), position, heartbeat, leave)
        source = count_delivered(handle.events(), gateway.metrics, None, position.tokens)
        model = handle.model or ""
        form = (ChatFormat if format == "chat" else CompletionFormat)(gateway.vocabularies.get(model))
        completion = Completion(request_id, model, (status.timings.created or 0) // 1000, form)
        return completion.stream([source], position, heartbeat, leave)

    slot = gateway.slots.take(caller, resumable=True)
    return SseResponse(frames, slot, gateway.settings.write_timeout)


@router.websocket("/v1/ws")
async def websocket(socket: WebSocket) -> None:
    await socket.accept()
    await SocketSession(gateway_of(socket), socket).run()
