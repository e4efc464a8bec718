"""Drain rate of a model's queues, measured for Retry-After."""

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass
from math import ceil
from typing import Final

from ...connection import Connection
from ...protocol import Keys
from ..scripts import DRAINED

_SAMPLES: Final = 12
_SAMPLE_EVERY: Final = 5_000
"""Milliseconds."""
_SOONEST: Final = 200
_MODELS: Final = 256
_LONGEST: Final = 600
_UNMEASURED: Final = 10
"""Retry-After in seconds where no request left the queue while it was sampled."""
_FREE_FRACTION: Final = 0.1
"""Fraction of the queue that should be free at the retry; with less, most retries would be refused again."""


@dataclass(frozen=True, slots=True)
class _Sample:
    time: int
    left: int


class DrainRate:
    """Samples the queues that this gateway submits to: every five seconds, over the last minute."""

    def __init__(self, connection: Connection, keys: Keys) -> None:
        self._connection = connection
        self._keys = keys
        self._samples: OrderedDict[str, deque[_Sample]] = OrderedDict()
        self._sampling: set[str] = set()

    async def watch(self, model: str, soonest: float = _SAMPLE_EVERY / 1000) -> None:
        """Sample the queues unless that was done within ``soonest`` seconds. Raises ``Unavailable``."""
        samples = self._samples.setdefault(model, deque(maxlen=_SAMPLES))
        self._samples.move_to_end(model)
        while len(self._samples) > _MODELS:
            self._samples.popitem(last=False)
        now = asyncio.get_running_loop().time() * 1000
        if model in self._sampling or (samples and now - samples[-1].time < soonest * 1000):
            return
        self._sampling.add(model)
        try:
            _, left = await self._connection.call(
                lambda server: DRAINED.run(server, self._keys.queues(model), [])
            )
        finally:
            self._sampling.discard(model)
        if samples and left < samples[-1].left:
            samples.clear()  # the streams were deleted, so their counters began again
        samples.append(_Sample(int(now), left))

    def per_second(self, model: str) -> float | None:
        """Requests a second that left the queue while it was sampled; None with too few samples."""
        samples = self._samples.get(model)
        if not samples or samples[-1].time - samples[0].time < _SOONEST:
            return None
        return (samples[-1].left - samples[0].left) * 1000 / (samples[-1].time - samples[0].time)

    async def retry_after(self, model: str, depth: int, limit: int) -> int:
        """Whole seconds until a queue of ``depth`` should have free capacity under ``limit``."""
        await self.watch(model, _SOONEST / 1000)
        rate = self.per_second(model)
        if not rate:
            return _UNMEASURED
        excess = depth - limit + max(1.0, _FREE_FRACTION * limit)
        return min(_LONGEST, max(1, ceil(excess / rate)))
