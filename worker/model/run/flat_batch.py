"""Flat batch: an iteration's chunks as one sequence of tokens, in host memory."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...engine.iteration import Chunk, Iteration

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """S chunks of T tokens in all, R of which are sampled after, as a model's forward pass takes them.

    A token that only the device knows yet has id 0; ``pending_rows`` [P] says where such are, and
    ``pending_slots`` [P] which sequence slot's last sampled token belongs there.
    """

    tokens: Int64
    """[T]"""
    positions: Int64
    """[T]"""
    slot_mapping: Int64
    """[T], block * block_size + offset of the place each token's K and V go to."""
    query_start: Int32
    """[S + 1], where each chunk begins in the batch, and T."""
    lengths: Int32
    """[S], tokens of each sequence, this chunk included."""
    block_table: Int32
    """[S, W], as wide as the longest sequence needs; zeros beyond a sequence's own blocks."""
    rows: Int64
    """[R], the last token of each chunk that is sampled after."""
    slots: Int64
    """[R], those chunks' sequence slots."""
    output_positions: Int64
    """[R], the output position of each sampled token."""
    pending_rows: Int64
    pending_slots: Int64
    max_query: int
    max_length: int


class FlatBatchBuilder:
    """Builds flat batches; keeps each running sequence's block table as an array from one to the next."""

    def __init__(self, *, block_size: int, max_sequences: int, max_model_len: int) -> None:
        self._block_size = block_size
        self._tables = np.zeros((max_sequences, -(-max_model_len // block_size)), np.int32)
        self._table_sources: list[list[int] | None] = [None] * max_sequences
        self._table_lengths = [0] * max_sequences

    def build(self, iteration: Iteration) -> FlatBatch:
        """Lay out ``iteration``, which has at least one chunk."""
        chunks = iteration.chunks
        count = len(chunks)
        slots = np.fromiter((chunk.sequence.slot for chunk in chunks), np.int64, count)
        starts = np.fromiter((chunk.start for chunk in chunks), np.int64, count)
        queries = np.fromiter((chunk.length for chunk in chunks), np.int64, count)
        samples = np.fromiter((chunk.samples for chunk in chunks), np.bool_, count)
        output_positions = np.fromiter((chunk.position for chunk in chunks), np.int64, count)
        query_start = np.zeros(count + 1, np.int32)
        np.cumsum(queries, out=query_start[1:])
        lengths = starts + queries
        max_length = int(lengths.max())

        tokens, pending = _gather_tokens(chunks)
        for chunk in chunks:
            self._update_table(chunk.sequence.slot, chunk.sequence.block_table)
        tables = self._tables[slots, : -(-max_length // self._block_size)]
        owners = np.repeat(np.arange(count), queries)
        positions = np.arange(len(tokens)) + (starts - query_start[:-1])[owners]
        blocks = tables[owners, positions // self._block_size].astype(np.int64)
        return FlatBatch(
            tokens=tokens,
            positions=positions,
            slot_mapping=blocks * self._block_size + positions % self._block_size,
            query_start=query_start,
            lengths=lengths.astype(np.int32),
            block_table=tables,
            rows=query_start[1:][samples].astype(np.int64) - 1,
            slots=slots[samples],
            output_positions=output_positions[samples],
            pending_rows=query_start[1:][pending].astype(np.int64) - 1,
            pending_slots=slots[pending],
            max_query=int(queries.max()),
            max_length=max_length,
        )

    def _update_table(self, slot: int, blocks: list[int]) -> None:
        # A sequence's list of blocks only grows, and is a new list after preemption: what has been copied
        # from the same list is still right.
        if self._table_sources[slot] is not blocks:
            self._table_sources[slot] = blocks
            self._table_lengths[slot] = 0
            self._tables[slot] = 0
        copied = self._table_lengths[slot]
        if copied < len(blocks):
            self._tables[slot, copied : len(blocks)] = blocks[copied:]
            self._table_lengths[slot] = len(blocks)


def _gather_tokens(chunks: list[Chunk]) -> tuple[Int64, list[int]]:
    """Token ids of all chunks, and the indices of the chunks whose last token is still on the device."""
    tokens: list[int] = []
    pending: list[int] = []
    for index, chunk in enumerate(chunks):
        prompt, output = chunk.sequence.prompt, chunk.sequence.output
        start, end = chunk.start, chunk.start + chunk.length
        if start < len(prompt):
            tokens += prompt[start:end]
        if end > len(prompt):
            tokens += output[max(0, start - len(prompt)) : end - len(prompt)]
        if end > len(prompt) + len(output):
            tokens.append(0)
            pending.append(index)
    return np.array(tokens, np.int64), pending
