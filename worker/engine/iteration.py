"""What the scheduler decides for one iteration, and what a runner makes of it."""

from dataclasses import dataclass, field
from typing import Protocol

from .sequence import SampledToken, Sequence


@dataclass(slots=True, eq=False)
class Chunk:
    """The tokens of one sequence that one iteration computes: ``start`` up to ``start + length``."""

    sequence: Sequence
    start: int
    length: int
    samples: bool
    """The chunk ends with the sequence's last token, so a token is sampled after it."""
    position: int
    """Output position of that token: how many output tokens come before it."""
    num_blocks: int
    """Size of the sequence's block table."""


@dataclass(slots=True, eq=False)
class Iteration:
    """One forward pass over a flat batch: chunks in batch order, decodes first."""

    number: int
    chunks: list[Chunk] = field(default_factory=list[Chunk])
    preempted: list[Sequence] = field(default_factory=list[Sequence])

    @property
    def num_tokens(self) -> int:
        return sum(chunk.length for chunk in self.chunks)

    # Loops over all chunks rather than a call for each: with hundreds of sequences, calls take the time.

    def count_scheduled(self) -> None:
        """Its chunks count as computed from here on, and the tokens sampled after them as pending."""
        for chunk in self.chunks:
            sequence = chunk.sequence
            sequence.num_computed += chunk.length
            if chunk.samples:
                sequence.num_pending += 1
                sequence.num_tokens += 1

    def count_withdrawn(self) -> None:
        """Take ``count_scheduled`` back."""
        for chunk in self.chunks:
            sequence = chunk.sequence
            sequence.num_computed -= chunk.length
            if chunk.samples:
                sequence.num_pending -= 1
                sequence.num_tokens -= 1


class Launched(Protocol):
    """An iteration under way on the device."""

    def collect(self) -> list[SampledToken]:
        """Wait for the sampled tokens: one for each chunk with ``samples``, in batch order.

        Raises:
            DeviceFailure
        """
        ...


class Runner(Protocol):
    """Runs iterations in the order given.

    A sequence's tokens are ``prompt + output``. A chunk that ends one beyond those ends with the token that
    the iteration before sampled, which the host may not know yet and the runner finds by the sequence's
    ``slot``.
    """

    def launch(self, iteration: Iteration) -> Launched:
        """Start computing; returns at once on an asynchronous device.

        Raises:
            OutOfMemory: as if nothing had been launched, but for what K and V its chunks would have written.
            DeviceFailure
        """
        ...
