"""Activations of gated feed-forward layers."""

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from ..dispatch import Implementation, choose

__all__ = ["gelu_tanh_and_mul", "silu_and_mul"]


def silu_and_mul(gate_up: Tensor, *, implementation: Implementation | None = None) -> Tensor:
    """``gate * sigmoid(gate) * up``, of the halves of the last dimension (SwiGLU, arXiv 2002.05202).

    Computed in float32 and rounded once, at the end.

    Args:
        gate_up: [..., 2 * n], the gates before the others, float32, float16 or bfloat16.
        implementation: ``"torch"``, ``"triton"`` or None for the default one.

    Returns:
        [..., n].

    Raises:
        ValueError: when the last dimension is odd.
    """
    return _activate(gate_up, "silu", implementation)


def gelu_tanh_and_mul(gate_up: Tensor, *, implementation: Implementation | None = None) -> Tensor:
    """``gelu(gate) * up``, of the halves of the last dimension, GELU by its tanh form (arXiv 1606.08415).

    As ``silu_and_mul`` otherwise.
    """
    return _activate(gate_up, "gelu", implementation)


def _activate(gate_up: Tensor, kind: str, implementation: Implementation | None) -> Tensor:
    if not gate_up.dim() or gate_up.shape[-1] % 2:
        raise ValueError(f"gate_up: expected an even last dimension, got shape {tuple(gate_up.shape)}")
    if choose(gate_up, implementation) == "triton":
        from .triton_activation import activate

        return activate(gate_up, kind)
    gate, up = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32)).chunk(2, dim=-1)
    activated = silu(gate) if kind == "silu" else gelu(gate, approximate="tanh")
    return (activated * up).to(gate_up.dtype)
