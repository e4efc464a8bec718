"""Sequences that wait in a full batch: another worker that has room for one goes on with it."""

import logging
import time

from .broker.broker import Broker
from .broker.control import Interrupts
from .engine.engine import Engine
from .engine.sequence import Sequence
from .inbox import Inbox
from .logs import about
from .telemetry import Telemetry

log = logging.getLogger(__name__)

SOON = 0.1
"""Of the ageing time: whoever has waited so long, at two looks in a row, is not admitted soon."""


class Displaced:
    """Asks for other workers' room, and answers when they ask. Called at every iteration boundary.

    A worker hands over only what it had first or has added a token to. So a request that finds no place
    anywhere waits where it is, instead of going round.
    """

    def __init__(self, engine: Engine, broker: Broker, inbox: Inbox, telemetry: Telemetry) -> None:
        self._engine = engine
        self._broker = broker
        self._inbox = inbox
        self._telemetry = telemetry
        self._patience = SOON * broker.settings.ageing
        self._next_look = 0.0
        self._waited: dict[str, int] = {}

    def turn(self, interrupts: Interrupts, *, draining: bool) -> None:
        """Hand over those invited, invite one of those asked for, and ask for those that wait too long."""
        if interrupts.invited:
            self._hand_over(interrupts.invited)
        if interrupts.displaced and not draining:
            self._answer(interrupts.displaced)
        now = time.monotonic()
        if now >= self._next_look and not draining:
            self._next_look = now + self._patience
            self._look()

    def _look(self) -> None:
        waiting = {sequence.id: sequence for sequence in self._engine.waiting if _may_leave(sequence)}
        for sequence_id, sequence in waiting.items():
            if self._waited.get(sequence_id) == sequence.epoch:
                self._broker.handover.probe(sequence_id, sequence.num_tokens)
        self._waited = {sequence_id: sequence.epoch for sequence_id, sequence in waiting.items()}

    def _answer(self, displaced: dict[str, int]) -> None:
        if len(self._inbox) or self._broker.intake.pulled or self._broker.intake.ready:
            return
        now = self._broker.clock.now_ms()
        for request_id, num_tokens in displaced.items():
            if self._engine.fits(num_tokens, now):
                self._broker.handover.invite(request_id)
                return

    def _hand_over(self, invited: dict[str, None]) -> None:
        for sequence in self._engine.waiting:
            if sequence.id in invited and _may_leave(sequence):
                self._engine.drop({sequence.id: sequence.epoch})
                self._telemetry.dropped(sequence.id)
                self._broker.handover.hand_over(sequence.id, sequence.epoch)
                about(log, sequence.id).info("waits for cache blocks; another worker has some: handed over")


def _may_leave(sequence: Sequence) -> bool:
    if sequence.is_complete:  # its last token is under way
        return False
    return sequence.epoch == 1 or len(sequence.output) > sequence.num_resumed
