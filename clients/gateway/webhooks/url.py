"""Validation of webhook URLs against the operator's allowed origins."""

from collections.abc import Iterable
from typing import Final

import httpx

from ..errors import invalid

MAX_URL: Final = 2048


def checked_url(url: str, origins: Iterable[str]) -> httpx.URL:
    """``url``, if its origin is one of ``origins``.

    The URL is compared as parsed by the HTTP client that will send to it: no second parser can disagree.

    Raises:
        ApiError: it is not a URL, or its origin is not allowed.
    """
    try:
        parsed = httpx.URL(url)
        allowed = {_origin(httpx.URL(origin)) for origin in origins}
    except (httpx.InvalidURL, ValueError, UnicodeError):
        raise invalid("webhook: is not a URL", "webhook") from None
    if parsed.userinfo or len(url) > MAX_URL or _origin(parsed) not in allowed:
        raise invalid("webhook: its origin is not allowed by this gateway", "webhook", "webhook_not_allowed")
    return parsed


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    default = {"https": 443, "http": 80}.get(url.scheme)
    return url.scheme, url.host.lower().rstrip("."), url.port or default
