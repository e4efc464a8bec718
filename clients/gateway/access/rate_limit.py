"""Rate limit of an API key, kept in Redis so that it applies across all gateways."""

from math import ceil

from ...connection import Connection
from ..errors import rate_limited
from ..redis_keys import GatewayKeys
from ..scripts import RATE
from .api_keys import Caller


async def spend(connection: Connection, keys: GatewayKeys, caller: Caller, requests: int) -> None:
    """Count ``requests`` more against the caller's rate.

    Raises:
        ApiError: 429, with the time after which this many will be allowed.
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
        message = f"The limit of this API key is {rate} requests a minute, in bursts of {caller.burst}."
        raise rate_limited(message, ceil(wait / 1000))
