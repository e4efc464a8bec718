"""Attention of one sequence's queries in torch, over its keys and values gathered into one piece.

Query heads that share a KV head are rows of one matrix product, so keys and values are never repeated.
"""

from typing import Final

import torch
from torch import Tensor

from .cpu_softmax import Scoring, Stored, weights_of
from .cpu_metadata_builder import Prompt, Shape

SCORE_ELEMENTS: Final = 1 << 21
"""Of the largest matrix of scores, float32: 8 MB, about what caches hold."""


def prefill(
    query: Tensor, keys: Stored, values: Stored, prompt: Prompt, shape: Shape, scoring: Scoring, out: Tensor
) -> None:
    """Answer query [n, heads, head_dim], a sequence's last n tokens, in ``out``, which is like it."""
    n, heads, head_dim = query.shape
    groups = (shape.kv_heads, heads // shape.kv_heads)
    key, value = keys.take(prompt.slots)[0], values.take(prompt.slots)[0]
    # Query heads of one KV head lie beside each other: [kv_heads, group, n, head_dim].
    rows = query.to(shape.dtype).view(n, *groups, head_dim).permute(1, 2, 0, 3) * scoring.scale
    sinks = None if scoring.sinks is None else scoring.sinks.view(*groups, 1, 1)
    first = prompt.length - n - prompt.origin
    step = max(16, SCORE_ELEMENTS // (heads * key.shape[1]))
    for start in range(0, n, step):
        stop = min(n, start + step)
        low, high = max(0, first + start - shape.window + 1), first + stop
        at = torch.arange(first + start, high, device=query.device)[:, None]
        position = torch.arange(low, high, device=query.device)
        hidden = (position > at) | (position <= at - shape.window)
        scores = rows[:, :, start:stop].flatten(1, 2) @ key[:, low:high].mT
        scores = scores.view(*groups, stop - start, high - low)
        weights = weights_of(scores, hidden, scoring.softcap, sinks)
        answer = (weights.flatten(1, 2) @ value[:, low:high]).view(*groups, stop - start, head_dim)
        out[start:stop] = answer.permute(2, 0, 1, 3).reshape(stop - start, heads, head_dim)
