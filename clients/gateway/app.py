"""Assembles the ASGI application: the only file that knows all the routes."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import version

import anyio
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from . import error_responses
from .access.auth_middleware import Guard
from .gateway import make_gateway
from .openapi import openapi_document
from .operation.access_log import Observation
from .operation.shutdown import Farewell
from .operation.tracing import begin_unrecorded, recorder
from .routes import batches, completions, events, files, health, jobs, models, requests, socket, system, time
from .routes.pages import page_routes, web_folder
from .settings import GatewaySettings

_DESCRIPTION = """\
Tokens from a queue. OpenAI's API for completions, and requests that can be left and followed again from any
gateway: the id of each event says where its reader stands.
"""


def create_app(settings: GatewaySettings) -> FastAPI:
    """The gateway as an ASGI application.

    Raises:
        ValueError, OSError: the file of API keys cannot be used.
        ImportError: traces are asked for and OpenTelemetry is not installed.
    """
    gateway = make_gateway(settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        async with gateway.client, anyio.create_task_group() as tasks:
            tasks.start_soon(gateway.webhooks.run)
            tasks.start_soon(gateway.batches.run)
            yield
            tasks.cancel_scope.cancel()

    app = FastAPI(
        title="Headrace gateway",
        version=version("headrace"),
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        # Its own spans would be the same again, and its log records can hold what was asked.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.openapi = lambda: openapi_document(app)
    app.state.gateway = gateway
    error_responses.install(app)
    rooms = (completions, models, jobs, requests, events, files, batches, socket, system, time, health)
    for room in rooms:
        app.include_router(room.router)
    app.router.routes.extend(page_routes(web_folder()))
    # The last one added is the outermost.
    app.add_middleware(Guard, gateway=gateway)
    app.add_middleware(Farewell, answers=gateway.answers)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "x-headrace-request", "retry-after"],
        )
    begin = recorder() if settings.traces else begin_unrecorded
    app.add_middleware(Observation, metrics=gateway.metrics, begin=begin)
    return app
