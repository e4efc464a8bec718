"""Inputs of recorded decode steps: padded to a size, at fixed addresses in device memory."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ....kernels import AttentionBatch
from .flat_batch import FlatBatch
from .transfer import pack, packed_bytes, unpack


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """Inputs of one decode step of ``size`` rows, one row a sequence. Rows of padding have length 0."""

    tokens: Tensor
    """int64 [size]; -1 where only ``last_tokens`` has it."""
    positions: Tensor
    slot_mapping: Tensor
    """int64 [size]; -1 for padding, which is not written."""
    slots: Tensor
    """int64 [size], rows of ``last_tokens``; for padding, one that no sequence has."""
    output_positions: Tensor
    lengths: Tensor
    """int32 [size]."""
    query_start: Tensor
    """int32 [size + 1]: each row is a sequence with one query."""
    block_table: Tensor
    """int32 [size, width]. What is beyond a sequence's length may be a former batch's."""

    def attention(self, max_length: int) -> AttentionBatch:
        """The batch as attention sees it, of sequences up to ``max_length``."""
        return AttentionBatch(self.query_start, self.lengths, self.block_table, 1, max_length)


class DecodeBuffers:
    """Device memory for the inputs of decode steps of up to ``max_size`` rows, whatever their size."""

    def __init__(self, *, max_size: int, width: int, padding_slot: int, device: torch.device) -> None:
        self._padding_slot = padding_slot
        self._pinned = device.type != "cpu"
        self._query_start = torch.arange(max_size + 1, dtype=torch.int32, device=device)
        self._block_table = torch.zeros(max_size, width, dtype=torch.int32, device=device)
        largest = [*_padding(max_size, padding_slot), np.empty((max_size, width), np.int32)]
        self._packed = torch.zeros(packed_bytes(largest), dtype=torch.uint8, device=device)

    def inputs(self, size: int) -> DecodeInputs:
        """Where steps of ``size`` rows find their inputs; the same places each time."""
        views = unpack(self._packed, _padding(size, self._padding_slot))
        tokens, positions, slot_mapping, slots, output_positions, lengths = views
        return DecodeInputs(
            tokens,
            positions,
            slot_mapping,
            slots,
            output_positions,
            lengths,
            self._query_start[: size + 1],
            self._block_table[:size],
        )

    def clear(self, size: int) -> None:
        """Make all ``size`` rows padding."""
        self._upload(_padding(size, self._padding_slot))

    def fill(self, batch: FlatBatch, size: int) -> None:
        """Put in a batch of at most ``size`` chunks of one token each, all of which are sampled after.

        One asynchronous copy to the device. Of the block table, it has the columns in use; they are spread
        out there.
        """
        count, width = batch.block_table.shape
        arrays = _padding(size, self._padding_slot)
        rows = (
            batch.tokens,
            batch.positions,
            batch.slot_mapping,
            batch.slots,
            batch.output_positions,
            batch.lengths,
        )
        for array, values in zip(arrays, rows, strict=True):
            array[:count] = values
        arrays[0][batch.pending_rows] = -1
        arrays.append(batch.block_table)
        self._upload(arrays)
        block_table = unpack(self._packed, arrays)[-1]
        self._block_table[:count, :width].copy_(block_table)

    def _upload(self, arrays: list[np.ndarray]) -> None:
        packed = pack(arrays, pin_memory=self._pinned)
        self._packed[: packed.numel()].copy_(packed, non_blocking=True)


def _padding(size: int, slot: int) -> list[np.ndarray]:
    """Tokens, positions, slot mapping, slots, output positions and lengths of ``size`` rows of padding."""
    return [
        np.zeros(size, np.int64),
        np.zeros(size, np.int64),
        np.full(size, -1, np.int64),
        np.full(size, slot, np.int64),
        np.zeros(size, np.int64),
        np.zeros(size, np.int32),
    ]
