"""Redis's clock, without asking each time: leases and deadlines are by that clock, not by the host's."""

import time


class Clock:
    """An estimate from the times that scripts return; off by at most the round trip of the last one.

    The host's clock may be hours away, so it starts at zero: until Redis has told its time, no moment has
    come. Every claim brings it, so that no owned entry is ever judged by another.
    """

    def __init__(self) -> None:
        self._offset = -_monotonic_ms()

    def now_ms(self) -> int:
        """Unix time in milliseconds by Redis's clock."""
        return int(_monotonic_ms() + self._offset)

    def sync(self, redis_ms: int) -> None:
        self._offset = redis_ms - _monotonic_ms()


def _monotonic_ms() -> float:
    return time.monotonic() * 1000
