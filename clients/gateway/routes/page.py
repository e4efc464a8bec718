"""The web page at ``/``. Open to everybody: it holds nothing, and asks for an API key where one is needed."""

from hashlib import sha256
from importlib.resources import files
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from ... import web
from ..errors import not_found

router = APIRouter(include_in_schema=False)

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY: Final = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # Whatever would make HTML or script of text fails, so nothing that a model says can become either.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-cache",
}


def _read() -> dict[str, tuple[bytes, str, str]]:
    """Content, type and tag of each file, by name."""
    found: dict[str, tuple[bytes, str, str]] = {}
    for file in files(web).iterdir():
        kind = _TYPES.get("." + file.name.rpartition(".")[2])
        if kind is not None:
            content = file.read_bytes()
            found[file.name] = content, kind, f'"{sha256(content).hexdigest()[:20]}"'
    return found


_FILES: Final = _read()


@router.api_route("/", methods=["GET", "HEAD"])
async def page(request: Request) -> Response:
    return _answer(request, "index.html")


@router.api_route("/web/{name}", methods=["GET", "HEAD"])
async def part(request: Request, name: str) -> Response:
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    if name not in _FILES:
        raise not_found()
    content, kind, tag = _FILES[name]
    headers = _HEADERS | {"ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)
