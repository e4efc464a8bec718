"""Paged attention on the CPU, in torch.

Decoding sequences are computed together, in groups of similar length; a sequence with several queries is
computed alone, a slice of its queries at a time.
"""

import torch
from torch import Tensor

from .batch import AttentionBatch
from .cpu_decode import decode
from .cpu_metadata import LayerShape
from .cpu_metadata_builder import metadata_of
from .cpu_prefill import prefill
from .cpu_softmax import CacheRows, ScoreOptions


def attend(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: AttentionBatch,
    out: Tensor,
    *,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
    key_scale: Tensor | None,
    value_scale: Tensor | None,
) -> None:
    """See ``paged_attention``."""
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    num_blocks, kv_heads, block_size, head_dim = key_cache.shape
    longest = max(batch.max_length, 1)
    shape = LayerShape(
        heads=query.shape[1],
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        num_blocks=num_blocks,
        window=min(sliding_window or longest, longest),
        dtype=dtype,
        in_place=key_cache.dtype == dtype,
    )
    keys, values = CacheRows(key_cache, key_scale, dtype), CacheRows(value_cache, value_scale, dtype)
    options = ScoreOptions(scale, softcap, None if sinks is None else sinks.to(dtype))
    metadata = metadata_of(batch, shape)
    for rows in metadata.padding:
        out[rows] = 0
    for sequence in metadata.prefills:
        prefill(query[sequence.rows], keys, values, sequence, shape, options, out[sequence.rows])
    for group in metadata.decodes:
        output = decode(query.index_select(0, group.rows), keys, values, group, shape, options)
        out.index_copy_(0, group.rows, output)
