"""Sequences whose computation raised an exception: each ends with an error, and the engine goes on.

Where many fail in a row and nothing succeeds in between, they are not at fault: the worker is.
"""

import logging
from dataclasses import dataclass, field
from typing import Final

from .errors import ENDS_PROCESS, WorkerFault
from .output import SequenceOutput

log = logging.getLogger(__name__)

MAX_FAULTS_IN_A_ROW: Final = 8
"""Sequences that fail one after the other, each computed alone, with no launch between them that succeeds:
from this many on it is not the sequences' fault."""


@dataclass(frozen=True, slots=True)
class Fault:
    """``work`` on a sequence raised ``error``."""

    output: SequenceOutput
    work: str
    error: BaseException

    @property
    def message(self) -> str:
        """For the client: no more of the exception than its class."""
        return f"{self.work} raised {type(self.error).__name__}"

    def report(self, num_others: int) -> None:
        """Log it in a line; the traceback at debug level."""
        sequence_id = self.output.sequence.id
        about = {"request": sequence_id}
        line = "request %s: ended with an error: %s raised %s; %d other requests go on"
        log.error(line, sequence_id, self.work, _in_a_line(self.error), num_others, extra=about)
        log.debug("request %s: traceback", sequence_id, exc_info=self.error, extra=about)


@dataclass(slots=True)
class Faults:
    """The faults of one step, to be taken at its end; and how many came in a row."""

    _noted: list[Fault] = field(default_factory=list[Fault])
    _in_a_row: int = 0

    def note(self, output: SequenceOutput, work: str, error: BaseException) -> None:
        """``work`` on a sequence raised ``error``.

        Raises:
            WorkerFault: too many have done so in a row.
            what ``error`` is, if that is never a sequence's fault.
        """
        if isinstance(error, ENDS_PROCESS):
            raise error
        self._in_a_row += 1
        if self._in_a_row >= MAX_FAULTS_IN_A_ROW:
            raise WorkerFault(
                f"{self._in_a_row} requests in a row failed, each computed alone; of the last one, "
                f"{work} raised {_in_a_line(error)}"
            ) from error
        self._noted.append(Fault(output, work, error))

    def succeeded(self) -> None:
        """An iteration was launched: the worker is sound."""
        self._in_a_row = 0

    def take(self) -> list[Fault]:
        noted, self._noted = self._noted, []
        return noted


def _in_a_line(error: BaseException) -> str:
    message = str(error).partition("\n")[0][:300]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
