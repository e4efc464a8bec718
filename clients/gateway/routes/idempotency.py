"""``Idempotency-Key``: a call that is repeated with the same key and body is one call."""

from starlette.requests import Request

from ..errors import invalid

MAX_KEY = 255


async def idempotency_key(request: Request) -> bytes | None:
    """What identifies the call: its key, its route and its body; None where no key was given.

    Raises:
        ApiError: the key is too long.
    """
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 0 < len(key) <= MAX_KEY:
        raise invalid(f"Idempotency-Key: must have 1 to {MAX_KEY} characters", "Idempotency-Key")
    return b"\0".join([key.encode(), request.url.path.encode(), await request.body()])
