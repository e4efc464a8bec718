"""The rate of an API key, counted in Redis so that it holds over all gateways."""

from math import ceil

from ...connection import Connection
from ..errors import rate_limited
from ..redis_keys import GatewayKeys
from ..scripts import RATE
from .api_keys import Caller


async def spend(connection: Connection, keys: GatewayKeys, caller: Caller, requests: int) -> None:
    """Count ``requests`` more against the caller's rate.

    Raises:
        ApiError: 429, with the time after which as many will pass.
        Unavailable: see ``Connection.call``.
    """
    rate = caller.rate
    if rate is None:
        return
    wait: int = await connection.call(
        lambda server: RATE.run(
            server, [keys.rate(caller.key_id)], [str(60_000 / rate), caller.burst, requests]
        )
    )
    if wait:
        message = f"This API key may make {rate} requests a minute, and {caller.burst} at once."
        raise rate_limited(message, ceil(wait / 1000))
