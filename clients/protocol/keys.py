"""Names of the Redis keys and channels: the part of the wire contract that every participant shares.

``{...}`` in a name is a literal Redis Cluster hash tag, so all keys of one model, and all keys of one
request, live in one slot and can be touched by one script.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal
from zlib import crc32

Priority = Literal["high", "normal", "low"]

PRIORITIES: Final[tuple[Priority, ...]] = ("high", "normal", "low")
LANES: Final = 16
GROUP: Final = "workers"

REQUEST_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")
MODEL_NAME: Final = re.compile(r"[A-Za-z0-9._:/@+-]{1,200}\Z")
NAMESPACE: Final = re.compile(r"[A-Za-z0-9._:/@+-]{1,100}\Z")


def lane_of(tenant: str | None) -> int:
    """The lane (0 to 15) that a tenant's requests queue in; 0 without a tenant."""
    return crc32(tenant.encode()) % LANES if tenant else 0


@dataclass(frozen=True, slots=True)
class Keys:
    """Every key and channel name under one namespace, in one ``database`` of the server.

    A server's channels know no databases, so their names carry it, unless it is the first.
    Names that could escape their hash tag or pattern are refused with ``ValueError``: a request id or a
    model name comes from outside.
    """

    namespace: str = "headrace"
    database: int = 0

    def __post_init__(self) -> None:
        if not NAMESPACE.match(self.namespace):
            raise ValueError(f"namespace: must match {NAMESPACE.pattern[:-2]}, got {self.namespace!r}")

    def queue(self, model: str, priority: Priority, lane: int) -> str:
        """Stream of requests, consumer group ``workers``; entry field ``r`` holds a msgpack request."""
        if priority not in PRIORITIES:
            raise ValueError(f"priority: must be one of {', '.join(PRIORITIES)}, got {priority!r}")
        if not 0 <= lane < LANES:
            raise ValueError(f"lane: must be from 0 to {LANES - 1}, got {lane}")
        return f"{self._of_model('queue', model)}:{priority}:{lane}"

    def queues(self, model: str) -> list[str]:
        """All queue streams of a model: by priority, then by lane."""
        return [self.queue(model, priority, lane) for priority in PRIORITIES for lane in range(LANES)]

    def service(self, model: str) -> str:
        """Hash of tokens served per lane."""
        return self._of_model("service", model)

    def control(self, model: str) -> str:
        """Channel of notices to workers, msgpack ``{"cancel": ID}`` or ``{"missing": ID}``."""
        return self._channel(self._of_model("control", model))

    def dead(self, model: str) -> str:
        """Stream of requests given up on."""
        return self._of_model("dead", model)

    def worker(self, model: str, name: str) -> str:
        """Hash with TTL: one worker's heartbeat."""
        return f"{self._of_model('worker', model)}:{name}"

    def request(self, request_id: str) -> str:
        """Hash of one request's state."""
        return self._of_request("request", request_id)

    def events(self, request_id: str) -> str:
        """Stream of one request's events; entry field ``e`` holds a msgpack event. Authoritative."""
        return self._of_request("events", request_id)

    def channel(self, request_id: str) -> str:
        """Channel on which the same event bytes are published as they are logged."""
        return self._channel(self._of_request("channel", request_id))

    def _channel(self, name: str) -> str:
        return f"{name}@{self.database}" if self.database else name

    def _of_model(self, kind: str, model: str) -> str:
        if not MODEL_NAME.match(model):
            raise ValueError(f"model: must match {MODEL_NAME.pattern[:-2]}, got {model[:80]!r}")
        return f"{self.namespace}:{kind}:{{{model}}}"

    def _of_request(self, kind: str, request_id: str) -> str:
        if not REQUEST_ID.match(request_id):
            raise ValueError(f"id: must match {REQUEST_ID.pattern[:-2]}, got {request_id[:80]!r}")
        return f"{self.namespace}:{kind}:{{{request_id}}}"
