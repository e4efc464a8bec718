"""The shape of one iteration's batch, as attention sees it."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """A flat batch of S sequences with any number of queries each, whose keys and values lie in blocks.

    The last query of sequence ``s`` is its token number ``lengths[s] - 1``. A sequence of length 0 is
    padding: its queries, if it has any, are answered with zeros. Rows past ``query_start[S]`` belong to no
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
    worked_out: dict[Any, Any] | None = None
    """Where an implementation may keep what it has worked out from all this, for the other layers of one
    forward pass; None keeps nothing. The tensors above must not change meanwhile."""
