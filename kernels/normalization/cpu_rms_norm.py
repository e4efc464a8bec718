"""RMSNorm in torch: what each row is multiplied by."""

import torch
from torch import Tensor


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """``1 / sqrt(mean(x**2) + eps)`` of x [..., n]: [..., 1].

    By way of the rows' lengths, which torch works out in one pass; its ``rms_norm`` takes several on a CPU.
    """
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
