"""Whether the process works and whether it takes requests: for those who restart workers or roll them out."""

import time
from collections.abc import Callable
from typing import Final, Literal

import anyio

STALLED: Final = 120.0
"""Seconds in one engine step, or without a turn of the event loop, after which a worker counts as hung."""
_BEAT: Final = 1.0

Liveness = Literal["alive", "engine_stalled", "loop_stalled"]
Readiness = Literal["ready", "loading", "draining", "no_redis", "engine_stalled", "loop_stalled"]


class Health:
    """One worker's answers to probes. Told by its event loop, asked from any thread.

    While the model loads it is alive and not ready; how long that may take is for whoever probes to know.
    """

    def __init__(self, lease: float, stalled: float = STALLED) -> None:
        self._lease = lease
        self._stalled = stalled
        self._beaten: float | None = None
        self._stepping_for: Callable[[], float] = lambda: 0.0
        self._renewed_at: Callable[[], float] | None = None
        self._draining: Callable[[], bool] = lambda: False

    def serving(
        self, stepping_for: Callable[[], float], renewed_at: Callable[[], float], draining: Callable[[], bool]
    ) -> None:
        """The model is loaded.

        ``stepping_for`` gives the seconds of the current engine step, ``renewed_at`` when Redis last heard
        that this worker is alive, of the monotonic clock, ``draining`` whether it takes nothing more.
        """
        self._stepping_for, self._renewed_at, self._draining = stepping_for, renewed_at, draining

    async def beat(self) -> None:
        """Show that the event loop turns, until cancelled."""
        while True:
            self._beaten = time.monotonic()
            await anyio.sleep(_BEAT)

    @property
    def progressing(self) -> bool:
        """The engine's step, if there is one, does not take longer than any should."""
        return self._stepping_for() < self._stalled

    def liveness(self) -> Liveness:
        if not self.progressing:
            return "engine_stalled"
        if self._beaten is not None and time.monotonic() - self._beaten >= self._stalled:
            return "loop_stalled"
        return "alive"

    def readiness(self) -> Readiness:
        """``no_redis`` once others would take the requests of a worker that is silent for as long."""
        liveness = self.liveness()
        if liveness != "alive":
            return liveness
        if self._renewed_at is None:
            return "loading"
        if self._draining():
            return "draining"
        return "ready" if time.monotonic() - self._renewed_at() < self._lease else "no_redis"
