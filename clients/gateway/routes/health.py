"""Whether the process lives, whether it can work, and what it counts."""

from contextlib import suppress
from typing import Any, Final

import anyio
from fastapi import APIRouter
from redis.exceptions import RedisError
from starlette.responses import JSONResponse, Response

from ...errors import Unavailable
from ..access.dependencies import GatewayDep
from ..errors import unavailable

_PATIENCE: Final = 3.0
"""Seconds that a probe or a scrape may wait for Redis; whoever asks waits hardly longer."""

router = APIRouter(tags=["Operation"])


@router.get("/healthz", summary="The process answers")
async def alive() -> dict[str, str]:
    return {"status": "alive"}


@router.get("/readyz", summary="The gateway takes requests and reaches Redis", response_class=JSONResponse)
async def ready(gateway: GatewayDep) -> dict[str, str]:
    if gateway.slots.draining:
        raise unavailable("The gateway is about to stop.", "draining")

    server: Any = gateway.client.connection.server
    try:
        with anyio.fail_after(_PATIENCE):
            await server.ping()
    except (RedisError, OSError):
        raise unavailable("Redis does not answer.", "queue_unavailable") from None
    return {"status": "ready"}


@router.get("/metrics", summary="For Prometheus", response_class=Response)
async def metrics(gateway: GatewayDep) -> Response:
    gateway.metrics.overview = None
    with suppress(Unavailable), anyio.move_on_after(_PATIENCE):
        gateway.metrics.overview = await gateway.system.overview()
    return Response(gateway.metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")
