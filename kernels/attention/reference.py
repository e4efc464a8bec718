"""Reference of paged attention: its definition in float64, one sequence and one matrix at a time."""

import torch
from torch import Tensor

from .batch import AttentionBatch


def reference_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
) -> Tensor:
    """Arguments as in ``paged_attention``, which every implementation of it is compared with.

    Returns:
        float64 [T, heads, head_dim]; rows of padding and of no sequence are zero.
    """
    starts: list[int] = batch.query_start.tolist()
    lengths: list[int] = batch.lengths.tolist()
    heads, block_size = query.shape[1], key_cache.shape[2]
    out = query.new_zeros(query.shape, dtype=torch.float64)
    for sequence, length in enumerate(lengths):
        q = query[starts[sequence] : starts[sequence + 1]].double()
        if not length or not q.shape[0]:
            continue
        first_position = length - q.shape[0]
        first_key = max(0, first_position - sliding_window + 1) if sliding_window else 0
        position = torch.arange(first_position, length, device=query.device)[:, None]
        key_position = torch.arange(first_key, length, device=query.device)
        blocks = batch.block_table[sequence, key_position // block_size].long()

        k = _gather(key_cache, key_scale, blocks, key_position % block_size, heads)
        v = _gather(value_cache, value_scale, blocks, key_position % block_size, heads)
        scores = q.transpose(0, 1) @ k.mT * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        visible = key_position <= position
        if sliding_window is not None:
            visible &= key_position > position - sliding_window
        scores = scores.masked_fill(~visible, -torch.inf)
        if sinks is not None:
            sink = sinks.double()[:, None, None].expand(-1, q.shape[0], 1)
            scores = torch.cat([scores, sink], -1)
        weights = scores.softmax(-1)[..., : key_position.numel()]
        out[starts[sequence] : starts[sequence + 1]] = (weights @ v).transpose(0, 1)
    return out


def _gather(cache: Tensor, scale: Tensor | None, blocks: Tensor, offsets: Tensor, heads: int) -> Tensor:
    """float64 [heads, keys, head_dim]: rows at ``offsets`` in ``blocks``, repeated for the query heads."""
    rows = cache.double()[blocks, :, offsets]
    if scale is not None:
        rows = rows * scale.double()[:, None]
    return rows.repeat_interleave(heads // cache.shape[1], dim=1).transpose(0, 1)
