"""Normalization of hidden states."""

from typing import overload

import torch
from torch import Tensor

from ..dispatch import Implementation, choose
from .cpu_rms_norm import inverse_rms

__all__ = ["rms_norm"]


@overload
def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    residual: None = None,
    offset: float = 0.0,
    implementation: Implementation | None = None,
) -> Tensor: ...
@overload
def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    residual: Tensor,
    offset: float = 0.0,
    implementation: Implementation | None = None,
) -> tuple[Tensor, Tensor]: ...
def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    residual: Tensor | None = None,
    offset: float = 0.0,
    implementation: Implementation | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """``x / sqrt(mean(x**2) + eps) * (offset + weight)`` over the last dimension (arXiv 1910.07467).

    Computed in float32 and rounded once, at the end.

    Args:
        x: [..., n], float32, float16 or bfloat16. Layers and, with [T, heads, head_dim], heads.
        weight: [n].
        eps: added to the mean square.
        residual: [..., n]: added to x first; the sum, rounded to x's dtype, is normalized and returned.
        offset: added to the weight; 1 in the Gemma models.
        implementation: ``"torch"``, ``"triton"`` or None for the default one.

    Returns:
        The normalized [..., n], or with a residual the pair of that and the sum.

    Raises:
        ValueError: when the shapes do not fit together; the message names the argument.
    """
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"weight: expected [{x.shape[-1]}], got {tuple(weight.shape)}")
    if residual is not None and (residual.shape != x.shape or residual.dtype != x.dtype):
        raise ValueError(
            f"residual: {residual.dtype} {tuple(residual.shape)} differs from x in shape or dtype"
        )
    if choose(x, implementation) == "triton":
        from .triton_rms_norm import normalize

        return normalize(x, weight, eps, residual, offset)
    if residual is not None:
        x = x + residual
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    factor = weight.to(wide.dtype)
    if offset:
        factor = factor + offset
    normalized = (wide * inverse_rms(wide, eps)).mul_(factor).to(x.dtype)
    return normalized if residual is None else (normalized, x)
