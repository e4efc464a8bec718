"""Probes and metrics: ``/healthz``, ``/readyz``, ``/metrics``."""

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
"""Seconds that a probe or a scrape waits for Redis, below the usual timeouts of probes."""

router = APIRouter(tags=["Operation"])


@router.get("/healthz", summary="Liveness: the process responds")
async def alive() -> dict[str, str]:
    return {"status": "alive"}


@router.get(
    "/readyz",
    summary="Readiness: the gateway accepts requests and reaches Redis",
    response_class=JSONResponse,
)
async def ready(gateway: GatewayDep) -> dict[str, str]:
    if gateway.slots.draining:
        raise unavailable("The gateway is draining.", "draining")

    server: Any = gateway.client.connection.server
    try:
        with anyio.fail_after(_PATIENCE):
            await server.ping()
    except (RedisError, OSError):
        raise unavailable("Redis does not respond.", "queue_unavailable") from None
    return {"status": "ready"}


@router.get("/metrics", summary="Prometheus metrics", response_class=Response)
async def metrics(gateway: GatewayDep) -> Response:
    gateway.metrics.overview = None
    with suppress(Unavailable), anyio.move_on_after(_PATIENCE):
        gateway.metrics.overview = await gateway.system.overview()
    return Response(gateway.metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")
