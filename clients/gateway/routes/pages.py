"""The web page: static files of ``headrace.clients.web``, with a Content-Security-Policy."""

from importlib.resources import files
from pathlib import Path
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        # Forbids turning text into HTML or script, so model output cannot become either.
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def web_folder() -> Path | None:
    """The page's folder; None if it is not installed."""
    folder = Path(str(files("headrace.clients").joinpath("web")))
    return folder if (folder / "index.html").is_file() else None


def page_routes(folder: Path | None) -> list[Route]:
    """Routes of the page and its files; without a folder, of a JSON object in its place."""
    if folder is None:
        return [Route("/", _without_page)]
    pages = _SecurityHeaders(StaticFiles(directory=folder, html=True))
    return [Route("/", pages), Route("/{name}", pages)]


async def _without_page(_request: object) -> JSONResponse:
    return JSONResponse({"name": "Headrace gateway", "openapi": "/openapi.json"})


class _SecurityHeaders:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, with_headers)
