"""Attention of sequences with one query each in torch, without copying keys and values of the cache.

Scores are the elements that a sparse matrix has of the product of all queries with all keys in the cache; the
answer is each query's weighted sum of rows of values, as embeddings of bags of words are computed.
"""

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from .cpu_softmax import Scoring, Stored, weights_of
from .cpu_metadata_builder import Decodes, Shape


def decode(
    query: Tensor, keys: Stored, values: Stored, decodes: Decodes, shape: Shape, scoring: Scoring
) -> Tensor:
    """query [n, heads, head_dim], one of each of the sequences; like query."""
    key_rows, value_rows = (
        stored.rows if shape.in_place else stored.take(decodes.slots).flatten(0, 2)
        for stored in (keys, values)
    )
    n, heads, head_dim = query.shape
    rows = query.to(shape.dtype).reshape(n * heads, head_dim)
    scored = torch.sparse.sampled_addmm(decodes.seen, rows, key_rows.mT, alpha=scoring.scale)
    scores = scored.values().view(n, heads, -1)
    sinks = None if scoring.sinks is None else scoring.sinks[:, None]
    # Where there is no cap, the one that was added to hides what is hidden.
    hidden = None if scoring.softcap is None else decodes.hidden[:, None]
    weights = weights_of(scores, hidden, scoring.softcap, sinks)
    answer = embedding_bag(
        decodes.columns, value_rows, decodes.offsets, mode="sum", per_sample_weights=weights.reshape(-1)
    )
    return answer.view(query.shape).to(query.dtype)
