"""``Idempotency-Key``: repeating a call with the same key and body does not repeat its effect."""

from starlette.requests import Request

from ..errors import invalid

MAX_KEY = 255


async def idempotency_key(request: Request) -> bytes | None:
    """The identity of a call: its key, route and body; None without a key.

    Raises:
        ApiError: the key is too long.
    """
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 0 < len(key) <= MAX_KEY:
        raise invalid(f"Idempotency-Key: must have 1 to {MAX_KEY} characters", "Idempotency-Key")
    return b"\0".join([key.encode(), request.url.path.encode(), await request.body()])
