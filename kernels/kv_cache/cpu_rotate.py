"""Rotary embedding on the CPU, in torch."""

import torch
from torch import Tensor

from ..normalization.cpu_rms_norm import inverse_rms
from .head_norm import HeadNorm


def rotate(
    query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor, norm: HeadNorm | None
) -> tuple[Tensor, Tensor]:
    """query [T, heads, head_dim] and key [T, kv_heads, head_dim], normalized if there is a norm, the first d
    elements of each head rotated by cosine and sine [T, d]; new tensors."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    heads = [query.shape[1], key.shape[1]]
    both = torch.cat([query, key], 1).to(dtype)
    if norm is not None:
        weights = [norm.query.expand(heads[0], -1), norm.key.expand(heads[1], -1)]
        both *= inverse_rms(both, norm.eps)
        both *= torch.cat(weights).to(dtype) + norm.offset
    rotated, half = cosine.shape[1], cosine.shape[1] // 2
    cosine, sine = cosine.to(dtype)[:, None], sine.to(dtype)[:, None]
    rotated_heads = both.clone() if rotated < both.shape[2] else torch.empty_like(both)
    torch.mul(both[..., :rotated], cosine, out=rotated_heads[..., :rotated])
    rotated_heads[..., :half].addcmul_(both[..., half:rotated], sine[..., :half], value=-1)
    rotated_heads[..., half:rotated].addcmul_(both[..., :half], sine[..., half:])
    query, key = rotated_heads.to(query.dtype).split(heads, 1)
    return query, key
