"""What the broker of one worker must know. Times are in seconds."""

import re
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Final

from ...clients.protocol import Keys
from ...clients.redis_url import Location
from ..ageing import Ageing

SERVICE_TTL: Final = 24 * 3600.0
"""How long the service of lanes is remembered after the last use of a model's queues."""
WORKER_NAME: Final = re.compile(r"[A-Za-z0-9._@-]{1,100}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Raises ``ValueError`` naming the field that is out of range."""

    url: str = field(repr=False)
    model: str
    """The served name: which queues to take from."""
    name: str
    """This worker's name; two live workers of one model must not share it."""
    namespace: str = "headrace"
    lease: float = 15.0
    """How long a worker may be silent before others take its requests over; renewed every third of it."""
    ageing: float = Ageing().ms / 1000
    """A request rises by one priority for each such time since its submission."""
    max_attempts: int = 5
    """Claims of one request that may end in silence before it is given up."""
    result_ttl: float = 3600.0
    request_ttl: float = 86400.0
    """For the state and log of a request that has not ended; renewed while it runs."""
    max_outbox_bytes: int = 32 << 20
    """Output that may wait for Redis, approximately, before the engine has to stop."""
    timeout: float = 5.0
    """For each command."""
    dead_letters: int = 1000
    """How many are kept, approximately."""
    publish: str = field(init=False)
    """The command that publishes events."""
    keys: Keys = field(init=False)

    def __post_init__(self) -> None:
        if not WORKER_NAME.match(self.name):
            raise ValueError(f"name: must match {WORKER_NAME.pattern[:-2]}, got {self.name[:80]!r}")
        for limit in ("lease", "ageing", "result_ttl", "request_ttl", "timeout"):
            if not 0.001 <= getattr(self, limit) <= 1e9:
                raise ValueError(f"{limit}: must be from 0.001 to 1e9 seconds, got {getattr(self, limit)}")
        for limit in ("max_attempts", "max_outbox_bytes", "dead_letters"):
            if getattr(self, limit) < 1:
                raise ValueError(f"{limit}: must be at least 1, got {getattr(self, limit)}")
        location = Location.of(self.url)
        keys = Keys(self.namespace, location.database)
        keys.control(self.model)
        object.__setattr__(self, "publish", location.publish)
        object.__setattr__(self, "keys", keys)

    @property
    def clustered(self) -> bool:
        """A script may touch the keys of one hash tag only."""
        return self.publish == "SPUBLISH"


def consumer_name(worker: str) -> str:
    """A name in the consumer group for one life of a worker.

    A worker that comes back must not mistake its former self's entries for its own.
    """
    return f"{worker}.{token_hex(4)}"


def milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
