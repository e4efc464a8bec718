"""Prefill attention on the CPU: one sequence's queries over its gathered keys and values.

Query heads that share a KV head are rows of one matrix product, so keys and values are never repeated.
"""

from typing import Final

import torch
from torch import Tensor

from .cpu_metadata import LayerShape, PrefillMetadata
from .cpu_softmax import CacheRows, ScoreOptions, softmax_weights

SCORE_ELEMENTS: Final = 1 << 21
"""Elements of the largest matrix of scores: 8 MB of float32, about a CPU's caches."""


def prefill(
    query: Tensor,
    keys: CacheRows,
    values: CacheRows,
    sequence: PrefillMetadata,
    shape: LayerShape,
    options: ScoreOptions,
    out: Tensor,
) -> None:
    """Write to ``out`` the output of query [n, heads, head_dim], a sequence's last n tokens."""
    n, heads, head_dim = query.shape
    groups = (shape.kv_heads, heads // shape.kv_heads)
    key, value = keys.take(sequence.slots)[0], values.take(sequence.slots)[0]
    # Query heads of one KV head lie beside each other: [kv_heads, group, n, head_dim].
    rows = query.to(shape.dtype).view(n, *groups, head_dim).permute(1, 2, 0, 3) * options.scale
    sinks = None if options.sinks is None else options.sinks.view(*groups, 1, 1)
    first = sequence.length - n - sequence.first_key
    step = max(16, SCORE_ELEMENTS // (heads * key.shape[1]))
    for start in range(0, n, step):
        stop = min(n, start + step)
        low, high = max(0, first + start - shape.window + 1), first + stop
        at = torch.arange(first + start, high, device=query.device)[:, None]
        position = torch.arange(low, high, device=query.device)
        masked = (position > at) | (position <= at - shape.window)
        scores = rows[:, :, start:stop].flatten(1, 2) @ key[:, low:high].mT
        scores = scores.view(*groups, stop - start, high - low)
        weights = softmax_weights(scores, masked, options.softcap, sinks)
        output = (weights.flatten(1, 2) @ value[:, low:high]).view(*groups, stop - start, head_dim)
        out[start:stop] = output.permute(2, 0, 1, 3).reshape(stop - start, heads, head_dim)
