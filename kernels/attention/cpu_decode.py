"""Decode attention on the CPU, without copying keys and values of the cache.

Scores are sampled elements of the product of all queries with all keys of the cache (``sampled_addmm``); the
output is each query's weighted sum of rows of values (``embedding_bag``).
"""

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from .cpu_metadata import DecodeMetadata, LayerShape
from .cpu_softmax import CacheRows, ScoreOptions, softmax_weights


def decode(
    query: Tensor,
    keys: CacheRows,
    values: CacheRows,
    group: DecodeMetadata,
    shape: LayerShape,
    options: ScoreOptions,
) -> Tensor:
    """Output [n, heads, head_dim] of query [n, heads, head_dim], one of each of the group's sequences."""
    key_rows, value_rows = (
        cache.rows if shape.in_place else cache.take(group.slots).flatten(0, 2) for cache in (keys, values)
    )
    n, heads, head_dim = query.shape
    rows = query.to(shape.dtype).reshape(n * heads, head_dim)
    scored = torch.sparse.sampled_addmm(group.pattern, rows, key_rows.mT, alpha=options.scale)
    scores = scored.values().view(n, heads, -1)
    sinks = None if options.sinks is None else options.sinks[:, None]
    # Without a softcap, the pattern's -inf, added to the products, has masked padding already.
    masked = None if options.softcap is None else group.padding[:, None]
    weights = softmax_weights(scores, masked, options.softcap, sinks)
    output = embedding_bag(
        group.columns, value_rows, group.offsets, mode="sum", per_sample_weights=weights.reshape(-1)
    )
    return output.view(query.shape).to(query.dtype)
