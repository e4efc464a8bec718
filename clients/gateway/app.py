"""Assembly of the ASGI application; the only file that knows all routes and middleware."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import anyio
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware.cors import CORSMiddleware

from . import error_responses
from .access.auth_middleware import AuthMiddleware
from .gateway import make_gateway
from .operation.access_log import AccessLogMiddleware
from .operation.shutdown import ShutdownMiddleware
from .operation.tracing import begin_unrecorded, recorder
from .routes import batches, completions, events, files, health, models, requests, system
from .routes.pages import page_routes, web_folder
from .settings import GatewaySettings

_DESCRIPTION = """\
LLM inference through a queue: OpenAI's API for completions, and requests whose events can be followed, and
resumed after a disconnect, at any gateway; each event's id is the position to resume from.
"""


def create_app(settings: GatewaySettings) -> FastAPI:
    """The gateway as an ASGI application.

    Raises:
        ValueError, OSError: the file of API keys cannot be used.
        ImportError: ``settings.traces`` is set and OpenTelemetry is not installed.
    """
    gateway = make_gateway(settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        async with gateway.client, anyio.create_task_group() as tasks:
            tasks.start_soon(gateway.webhooks.run)
            tasks.start_soon(gateway.batch_runner.run)
            yield
            tasks.cancel_scope.cancel()

    app = FastAPI(
        title="Headrace gateway",
        version=version("headrace"),
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        # FastAPI's own spans would duplicate ours, and its log records can hold prompts.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.openapi = lambda: _openapi_document(app)
    app.state.gateway = gateway
    error_responses.install(app)
    for routes in (completions, models, requests, events, files, batches, system, health):
        app.include_router(routes.router)
    app.router.routes.extend(page_routes(web_folder()))
    # The last one added is the outermost.
    app.add_middleware(AuthMiddleware, gateway=gateway)
    app.add_middleware(ShutdownMiddleware, in_flight=gateway.in_flight)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "x-headrace-request", "retry-after"],
        )
    begin = recorder() if settings.traces else begin_unrecorded
    app.add_middleware(AccessLogMiddleware, metrics=gateway.metrics, begin=begin)
    return app


def _openapi_document(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, cached, without its 422 responses: a body that violates the schema gets 400."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        for methods in document["paths"].values():
            for operation in methods.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(name, None)
        app.openapi_schema = document
    return app.openapi_schema
