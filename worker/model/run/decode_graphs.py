"""Decode graphs: decode steps recorded for a ladder of batch sizes, replayed with padding to the next.

A decode step of a small model is some hundreds of kernels of a few microseconds: launched one by one, the
host takes longer than the device. A replay is one launch.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from ....kernels import AttentionBatch, Implementation, sample
from .decode_inputs import DecodeBuffers, DecodeInputs
from .flat_batch import FlatBatch
from .recording import Recorder

LENGTH_BOUNDS = (1024, 4096, 16384)
"""Attention of one launch is cut into as many splits as its longest sequence could need, and what the others
do not need still takes time to start. So there is a graph for each of these, and one for any length."""

Progress = Callable[[int, int], None]
"""Called with the number of graphs recorded and the number in all."""


class Forward(Protocol):
    """A model's forward pass."""

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        slot_mapping: Tensor,
        batch: AttentionBatch,
        rows: Tensor | None,
    ) -> Tensor:
        """Logits [R, vocabulary] of ``rows`` [R] (None: of all) of a flat batch of T tokens."""
        ...


@dataclass(frozen=True, slots=True)
class DecodeOutput:
    """Output of a decode step for R sequences; overwritten by the next one in the device's order."""

    logits: Tensor
    """[R, vocabulary]."""
    previous: Tensor
    """int64 [R], the tokens sampled last before."""
    argmax: Tensor
    """int64 [R]; they are the new last tokens."""
    slots: Tensor
    """int64 [R]."""
    output_positions: Tensor
    """int64 [R]."""


def size_ladder(max_sequences: int) -> list[int]:
    """Batch sizes to record: 1, 2, 4, each 8th to 64, each 16th to 128, each 32nd, and the largest."""
    steps = [1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, max_sequences, 32)]
    return [size for size in steps if size < max_sequences] + [max_sequences]


def length_bounds(max_model_len: int) -> list[int]:
    """The longest sequences that there are graphs for."""
    return [bound for bound in LENGTH_BOUNDS if bound < max_model_len] + [max_model_len]


class DecodeGraphs:
    """Recorded decode steps, of which each gives what the same step run eagerly gives.

    ``last_tokens`` int64 [max_sequences + 1] holds each slot's last sampled token, and one for padding.
    """

    def __init__(
        self,
        forward: Forward,
        last_tokens: Tensor,
        *,
        max_model_len: int,
        block_size: int,
        implementation: Implementation | None = None,
    ) -> None:
        max_sequences = last_tokens.shape[0] - 1
        self._forward = forward
        self._last_tokens = last_tokens
        self._implementation: Implementation | None = implementation
        self._sizes = size_ladder(max_sequences)
        self._bounds = length_bounds(max_model_len)
        self._buffers = DecodeBuffers(
            max_size=max_sequences,
            width=-(-max_model_len // block_size),
            padding_slot=max_sequences,
            device=last_tokens.device,
        )
        self._previous = torch.zeros(max_sequences, dtype=torch.int64, device=last_tokens.device)
        self._argmax = torch.zeros_like(self._previous)
        self._logits = torch.empty(0)
        self._replays: dict[tuple[int, int], Callable[[], None]] = {}

    def record(self, recorder: Recorder, progress: Progress) -> None:
        """Record all steps, the largest first: the memory that it takes is enough for every other.

        Raises:
            RuntimeError: the model does something that cannot be recorded.
        """
        self._buffers.clear(1)
        probe = self._run_forward(self._buffers.inputs(1), self._bounds[0])
        self._logits = probe.new_empty(self._sizes[-1], probe.shape[1])
        pairs = [(size, bound) for size in reversed(self._sizes) for bound in reversed(self._bounds)]
        for done, (size, bound) in enumerate(pairs):
            progress(done, len(pairs))
            self._buffers.clear(size)
            inputs = self._buffers.inputs(size)
            self._replays[size, bound] = recorder.record(partial(self._step, inputs, bound))
        progress(len(pairs), len(pairs))

    def can_run(self, batch: FlatBatch) -> bool:
        """Whether each chunk of ``batch`` is one token that is sampled after."""
        return batch.max_query == 1 and len(batch.rows) == len(batch.tokens) <= self._sizes[-1]

    def run(self, batch: FlatBatch) -> DecodeOutput:
        """Start a decode step for a batch that ``can_run``."""
        count = len(batch.tokens)
        size = self._sizes[bisect_left(self._sizes, count)]
        bound = self._bounds[bisect_left(self._bounds, batch.max_length)]
        self._buffers.fill(batch, size)
        self._replays[size, bound]()
        inputs = self._buffers.inputs(size)
        return DecodeOutput(
            self._logits[:count],
            self._previous[:count],
            self._argmax[:count],
            inputs.slots[:count],
            inputs.output_positions[:count],
        )

    def _step(self, inputs: DecodeInputs, max_length: int) -> None:
        size = inputs.tokens.shape[0]
        logits = self._run_forward(inputs, max_length)
        argmax = sample(logits, None, implementation=self._implementation).tokens
        self._last_tokens.index_copy_(0, inputs.slots, argmax)
        # Kept where they outlive this graph's memory, which others use as well.
        self._argmax[:size].copy_(argmax)
        self._logits[:size].copy_(logits)

    def _run_forward(self, inputs: DecodeInputs, max_length: int) -> Tensor:
        previous = self._previous[: inputs.tokens.shape[0]]
        torch.index_select(self._last_tokens, 0, inputs.slots, out=previous)
        tokens = torch.where(inputs.tokens < 0, previous, inputs.tokens)
        return self._forward(
            tokens, inputs.positions, inputs.slot_mapping, inputs.attention(max_length), None
        )
