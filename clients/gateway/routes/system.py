"""``/v1/system``: live view of queues, workers and sequences, for operators."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from ..access.dependencies import AdminDep, GatewayDep
from ..errors import api_error_of
from ..json_body import compact
from ..operation.system_view import SystemView
from ..streams.sse import SseResponse, frame
from .schemas import EVENT_STREAM, errors

router = APIRouter(tags=["Operation"])

_STREAM: dict[int | str, dict[str, Any]] = errors(403, 429) | {
    200: {"description": "A `system` event every `interval` seconds.", "content": EVENT_STREAM}
}


@router.get("/v1/system", responses=errors(403), summary="Queues, workers and their sequences")
async def system(_caller: AdminDep, gateway: GatewayDep) -> SystemView:
    """Of all tenants; with API keys it needs one with `admin = true`."""
    return await gateway.system.view()


@router.get("/v1/system/events", responses=_STREAM, response_class=Response, summary="The same, live")
async def follow(
    caller: AdminDep,
    gateway: GatewayDep,
    interval: Annotated[float, Query(ge=0.5, le=60, description="Seconds between events.")] = 1.0,
) -> Response:
    async def frames(leave: asyncio.Future[None]) -> AsyncGenerator[bytes]:
        while not leave.done():
            try:
                body, event = compact((await gateway.system.view()).model_dump(mode="json")), "system"
            except Exception as error:
                failure = api_error_of(error)
                if failure is None:
                    raise
                body, event = compact(failure.body), "error"
            yield frame(body, event=event)
            await asyncio.wait([leave], timeout=interval)

    slot = gateway.slots.take(caller, resumable=True)
    return SseResponse(frames, slot, gateway.settings.write_timeout)
