"""Attention metadata of the CPU path: the slots that each group of a batch's queries attends to."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Properties of a layer that metadata depends on; layers of one shape share it."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    num_blocks: int
    """Of the caches."""
    window: int
    """Keys that a query sees at most, its own included."""
    dtype: torch.dtype
    """Of the computation."""
    in_place: bool
    """The caches have that dtype and are read without a copy."""


@dataclass(frozen=True, slots=True)
class PrefillMetadata:
    """A sequence with several queries."""

    rows: slice
    """Flat rows of its queries."""
    slots: Tensor
    """int64 [1, kv_heads, width]: rows of the cache with the keys that its queries see, in order."""
    length: int
    """Tokens of the sequence in the cache."""
    first_key: int
    """Position of the first of those keys."""


@dataclass(frozen=True, slots=True)
class DecodeMetadata:
    """n sequences with one query each, computed together."""

    rows: Tensor
    """int64 [n]: flat rows of their queries."""
    slots: Tensor
    """int64 [n, kv_heads, width]: rows of the cache with the keys that each sees; shorter ones are padded
    with their last."""
    padding: Tensor
    """bool [n, width]: which keys are padding."""
    columns: Tensor
    """int32 [n * heads * width]: for each query head, the rows of those keys: in the cache when it is read in
    place, else in the gathered ``slots``."""
    offsets: Tensor
    """int32 [n * heads]: start of each query head's columns."""
    pattern: Tensor
    """Sparse CSR [n * heads, key rows]: 0 where a query head sees a key, -inf in padding."""


@dataclass(slots=True)
class CpuAttentionMetadata:
    """A batch as layers of one shape compute it."""

    padding: list[slice] = field(default_factory=list[slice])
    """Flat rows of sequences of length 0, whose output is zero."""
    prefills: list[PrefillMetadata] = field(default_factory=list[PrefillMetadata])
    decodes: list[DecodeMetadata] = field(default_factory=list[DecodeMetadata])
