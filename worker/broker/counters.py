"""What the broker counts; telemetry reads it."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Totals since the worker started."""

    round_trips: int = 0
    retries: Counter[str] = field(default_factory=Counter[str])
    """By kind of error, see ``connection.ErrorKind``."""
    taken: int = 0
    """Entries taken from the queue for the first time."""
    redelivered: int = 0
    """Entries taken over from another worker: it had stopped renewing its lease, or had handed them back."""
    abandoned: int = 0
    """Claims of requests whose worker had fallen silent."""
    resumed: int = 0
    """Claims that went on after tokens of an earlier epoch."""
    duplicates: int = 0
    """Entries of a request that another entry had already started or finished."""
    invalid: int = 0
    dead_letters: int = 0
    lost_claims: int = 0
    """Requests dropped because they belong to another worker now, or because Redis lost them."""
    handed_back: int = 0
    put_back: int = 0
    """Entries put back on their queue after somebody else had deleted them."""
    tokens_logged: int = 0
    bytes_logged: int = 0
    """Of event bytes, while requests run; without the rewritten logs."""
    relogged: int = 0
    """Times that a server came back with less of a log than it had confirmed, and was sent the rest again."""
    finished: Counter[str] = field(default_factory=Counter[str])
    """By finish reason."""
    outbox_bytes: int = 0
    """Gauge: output not yet confirmed by Redis, approximately."""

    def retried(self, kind: str) -> None:
        self.retries[kind] += 1
