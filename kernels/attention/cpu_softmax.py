"""What prefill and decode in torch share: rows out of a cache, and weights out of scores."""

from dataclasses import dataclass

import torch
from torch import Tensor


class Stored:
    """A cache of keys or values as rows, one for each position of each head of each block."""

    def __init__(self, cache: Tensor, scale: Tensor | None, dtype: torch.dtype) -> None:
        """``cache`` is [num_blocks, kv_heads, block_size, head_dim]; ``scale`` float32 [kv_heads] is what it
        is to be multiplied by, and ``dtype`` that of the rows taken."""
        self.rows = cache.reshape(-1, cache.shape[3])
        """[num_blocks * kv_heads * block_size, head_dim], as stored."""
        self._scale = scale
        self._dtype = dtype

    def take(self, slots: Tensor) -> Tensor:
        """The rows at ``slots`` int64 [n, kv_heads, width]: [n, kv_heads, width, head_dim]."""
        stored = self.rows.dtype
        # torch cannot index float8.
        rows = self.rows.view(torch.uint8) if stored == torch.float8_e4m3fn else self.rows
        taken = rows.index_select(0, slots.flatten()).view(stored).to(self._dtype)
        taken = taken.view(*slots.shape, -1)
        return taken if self._scale is None else taken.mul_(self._scale.to(self._dtype)[:, None, None])


@dataclass(frozen=True, slots=True)
class Scoring:
    """What a layer does to the products of queries and keys."""

    scale: float
    softcap: float | None
    sinks: Tensor | None
    """[heads], of the dtype computed in."""


def weights_of(scores: Tensor, hidden: Tensor | None, softcap: float | None, sinks: Tensor | None) -> Tensor:
    """Softmax over the last dimension of ``scores``: scaled products, some of which may be ``hidden``. They
    are overwritten. ``sinks`` have as many dimensions, the last of them 1."""
    if softcap is not None:
        scores.div_(softcap).tanh_().mul_(softcap)
    if hidden is not None:
        scores.masked_fill_(hidden, -torch.inf)
    if sinks is None:
        return scores.softmax(-1)
    sink = sinks.expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
