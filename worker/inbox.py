"""Claims on their way to the engine: made into sequences in a thread, in the order claimed."""

import logging
from dataclasses import dataclass

import anyio
import anyio.to_thread

from ..clients.protocol import FinishReason
from .broker.broker import Broker
from .broker.entries import Claim
from .engine.sequence import Sequence
from .logs import about
from .model.errors import InvalidInputError
from .preparation import Preparation
from .telemetry import Telemetry

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Preparing:
    """The claim in the thread now, and what has become of it meanwhile."""

    claim: Claim
    end: FinishReason | None = None
    lost: bool = False


class Inbox:
    """``run`` receives claims from the broker; ``take`` hands their sequences to the next iteration."""

    def __init__(self, broker: Broker, preparation: Preparation, telemetry: Telemetry) -> None:
        self._broker = broker
        self._preparation = preparation
        self._telemetry = telemetry
        self._ready: list[Sequence] = []
        self._preparing: _Preparing | None = None
        self._left = False
        self._arrived = anyio.Event()

    def __len__(self) -> int:
        """Claims received and not yet taken."""
        return len(self._ready) + (self._preparing is not None)

    def take(self) -> list[Sequence]:
        """Sequences that join the batch now."""
        ready, self._ready = self._ready, []
        return ready

    async def arrived(self) -> None:
        """Wait until ``take`` has something, or a claim has left: there is room for another then."""
        while not self._ready and not self._left:
            await self._arrived.wait()
        self._left = False

    def end(self, request_id: str, reason: FinishReason) -> None:
        """A claim still in preparation is over; others are the engine's to end."""
        if self._preparing is not None and self._preparing.claim.request.id == request_id:
            self._preparing.end = reason

    def drop(self, request_id: str, epoch: int) -> None:
        """A claim still in preparation belongs to another worker now."""
        preparing = self._preparing
        if preparing is not None and (preparing.claim.request.id, preparing.claim.epoch) == (
            request_id,
            epoch,
        ):
            preparing.lost = True

    async def run(self) -> None:
        """Receive and prepare until cancelled."""
        while True:
            await self.receive()

    async def receive(self) -> None:
        """Receive the next claim, and prepare it."""
        claim = await self._broker.intake.next_claim()
        self._preparing = preparing = _Preparing(claim)
        try:
            sequence = await anyio.to_thread.run_sync(self._preparation.sequence, claim)
        except InvalidInputError as error:
            about(log, claim.request.id).info("refused: %s", error)
            self._broker.reject(claim, "invalid_request", str(error))
            sequence = None
        except Exception as error:  # one request must not end the worker
            kind = type(error).__name__
            line = about(log, claim.request.id)
            line.error("ended with an error: its preparation raised %s: %s", kind, error)
            line.debug("traceback", exc_info=error)
            self._broker.reject(claim, "internal_error", f"preparing the request raised {kind}")
            sequence = None
        finally:
            self._preparing = None
        if sequence is None or preparing.lost:
            self._left = True
        elif preparing.end is not None:
            self._broker.end(claim, preparing.end)
            self._left = True
        else:
            self._telemetry.joined(sequence, claim.waited_ms, claim.request.trace)
            self._ready.append(sequence)
        self._arrived.set()
        self._arrived = anyio.Event()
