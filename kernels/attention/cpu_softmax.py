"""Cache rows and softmax, as prefill and decode of the CPU path share them."""

from dataclasses import dataclass

import torch
from torch import Tensor


class CacheRows:
    """A cache of keys or values as rows, one for each position of each head of each block."""

    def __init__(self, cache: Tensor, scale: Tensor | None, dtype: torch.dtype) -> None:
        """``cache`` is [num_blocks, kv_heads, block_size, head_dim]; ``scale`` float32 [kv_heads] multiplies
        the rows of each head, and ``dtype`` is that of the rows taken."""
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
class ScoreOptions:
    """A layer's score scale, softcap and attention sinks."""

    scale: float
    softcap: float | None
    sinks: Tensor | None
    """[heads], of the dtype of the computation."""


def softmax_weights(
    scores: Tensor, masked: Tensor | None, softcap: float | None, sinks: Tensor | None
) -> Tensor:
    """Softmax over the last dimension of scaled ``scores``, which are overwritten; ``masked`` ones weigh 0.
    ``sinks`` have as many dimensions, the last of them 1."""
    if softcap is not None:
        scores.div_(softcap).tanh_().mul_(softcap)
    if masked is not None:
        scores.masked_fill_(masked, -torch.inf)
    if sinks is None:
        return scores.softmax(-1)
    sink = sinks.expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
