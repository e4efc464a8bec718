"""Redis's clock, without asking each time: leases and deadlines are by that clock, not by the host's."""

import time


class Clock:
    """An estimate from the times that scripts return; off by at most the round trip of the last one."""

    def __init__(self) -> None:
        self._offset = time.time() * 1000 - _monotonic_ms()  # noqa: TID251  until Redis has told

    def now_ms(self) -> int:
        """Unix time in milliseconds by Redis's clock. The host's, until Redis has told its own."""
        return int(_monotonic_ms() + self._offset)

    def told(self, redis_ms: int) -> None:
        self._offset = redis_ms - _monotonic_ms()


def _monotonic_ms() -> float:
    return time.monotonic() * 1000
