"""Inverse root mean square of rows on the CPU, in torch."""

import torch
from torch import Tensor


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """``1 / sqrt(mean(x**2) + eps)`` of x [..., n]: [..., 1].

    From the rows' vector norms, one pass in torch; its ``rms_norm`` takes several on a CPU.
    """
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
