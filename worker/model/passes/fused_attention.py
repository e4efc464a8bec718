"""Fused attention layer: packed QKV; one kernel for head norms, rotation and cache write; attention."""

from typing import Any

import torch
from torch import Tensor, nn

from ....kernels import HeadNorm
from ..run.attention import LayerAttention, Rotation, attention_of
from .fused_layers import fused_norm, is_plain, linear_layer

_OUTPUTS = ("o_proj", "dense", "out_proj")
"""Names of the output projection in models."""


class FusedAttention(nn.Module):
    """An attention layer with the weights of Q, K and V in one matrix, rotary embedding by halves, and maybe
    norms of the heads before that."""

    def __init__(
        self,
        call: LayerAttention,
        qkv: Tensor,
        bias: Tensor | None,
        norm: HeadNorm | None,
        output: nn.Module,
        *,
        heads: int,
        kv_heads: int,
    ) -> None:
        super().__init__()
        self.layer_idx = call.layer
        self.qkv = linear_layer(qkv, bias)
        self.o_proj = output
        self._call = call
        self._norm = norm
        self._heads = [heads, kv_heads, kv_heads]

    def forward(
        self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], **_: object
    ) -> tuple[Tensor, None]:
        """Hidden states [1, T, hidden] and cosine and sine [1, T, d] of their positions to [1, T, hidden]."""
        cosine, sine = position_embeddings
        qkv: Tensor = self.qkv(hidden_states[0])
        query, key, value = qkv.unflatten(-1, (sum(self._heads), -1)).split(self._heads, dim=1)
        rotation = Rotation(cosine[0], sine[0], self._norm)
        attended = attention_of(self).attend(self._call, query, key, value, rotation)
        return self.o_proj(attended.flatten(1).unsqueeze(0)), None


def fused_attention(layer: nn.Module, call: LayerAttention) -> FusedAttention | None:
    """What might be the same as ``layer``, which calls attention by ``call``: its parts are of the kinds.

    Whether it is the same, only a forward pass can tell.
    """
    parts: list[Any] = [getattr(layer, name, None) for name in ("q_proj", "k_proj", "v_proj")]
    output = next((part for name in _OUTPUTS if (part := getattr(layer, name, None)) is not None), None)
    head_dim: Any = getattr(layer, "head_dim", None)
    if not isinstance(output, nn.Module) or not isinstance(head_dim, int):
        return None
    if not all(is_plain(part) and part.out_features % head_dim == 0 for part in parts):
        return None
    biases = [part.bias for part in parts]
    if any((bias is None) != (biases[0] is None) for bias in biases):
        return None
    if len({part.weight.dtype for part in parts}) != 1:
        return None
    fits, norm = _head_norm(layer)
    if not fits:
        return None
    return FusedAttention(
        call,
        torch.cat([part.weight.detach() for part in parts]),
        None if biases[0] is None else torch.cat([bias.detach() for bias in biases]),
        norm,
        output,
        heads=parts[0].out_features // head_dim,
        kv_heads=parts[1].out_features // head_dim,
    )


def _head_norm(layer: nn.Module) -> tuple[bool, HeadNorm | None]:
    """Whether the norms of queries and keys can be fused, and what they are, if there are any."""
    given: list[Any] = [getattr(layer, name, None) for name in ("q_norm", "k_norm")]
    if given == [None, None]:
        return True, None
    query, key = (None if one is None else fused_norm(one, "torch") for one in given)
    if query is None or key is None or (query.eps, query.offset) != (key.eps, key.offset):
        return False, None
    if query.weight.shape != key.weight.shape or query.weight.shape != (getattr(layer, "head_dim", None),):
        return False, None
    return True, HeadNorm(query.weight, key.weight, query.eps, query.offset)
