"""Paged attention in torch: the reference, and what serves on the CPU.

Sequences with one query are answered together, in groups of similar length; a sequence with more is answered
alone, a slice of its queries at a time.
"""

import torch
from torch import Tensor

from .batch import AttentionBatch
from .cpu_decode import decode
from .cpu_softmax import Scoring, Stored
from .cpu_prefill import prefill
from .cpu_metadata_builder import Shape, work_of


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
    blocks, kv_heads, block_size, head_dim = key_cache.shape
    longest = max(batch.max_length, 1)
    shape = Shape(
        heads=query.shape[1],
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        blocks=blocks,
        window=min(sliding_window or longest, longest),
        dtype=dtype,
        in_place=key_cache.dtype == dtype,
    )
    keys, values = Stored(key_cache, key_scale, dtype), Stored(value_cache, value_scale, dtype)
    scoring = Scoring(scale, softcap, None if sinks is None else sinks.to(dtype))
    work = work_of(batch, shape)
    for rows in work.padding:
        out[rows] = 0
    for prompt in work.prompts:
        prefill(query[prompt.rows], keys, values, prompt, shape, scoring, out[prompt.rows])
    for decodes in work.decodes:
        answer = decode(query.index_select(0, decodes.rows), keys, values, decodes, shape, scoring)
        out.index_copy_(0, decodes.rows, answer)
