"""Attention batch: query starts, lengths and block tables of one iteration."""

from dataclasses import dataclass

from torch import Tensor

from .cpu_metadata import CpuAttentionMetadata, LayerShape


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """A flat batch of S sequences with any number of queries each, whose keys and values lie in blocks.

    The last query of sequence ``s`` is its token number ``lengths[s] - 1``. A sequence of length 0 is
    padding: the output of its queries, if it has any, is zero. Rows past ``query_start[S]`` belong to no
    sequence and their results are unspecified.
    """

    query_start: Tensor
    """int32 [S + 1]: first flat row of each sequence's queries; the last entry is the number of queries."""
    lengths: Tensor
    """int32 [S]: tokens of each sequence in the cache, including those of this batch."""
    block_table: Tensor
    """int32 [S, max_blocks]: the blocks of each sequence in order. Unused entries may hold anything."""
    max_query: int
    """The largest number of queries of a sequence (or more), known to the host."""
    max_length: int
    """The largest length of a sequence (or more), known to the host."""
    cpu_metadata: dict[LayerShape, CpuAttentionMetadata] | None = None
    """Metadata of the CPU path by shape of layer: empty at the start of a forward pass, filled by its layers;
    None builds it for every call. The tensors above must not change meanwhile."""
