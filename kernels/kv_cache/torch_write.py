"""Rotary embedding and cache writes in torch: the reference, and what serves on the CPU."""

import torch
from torch import Tensor

from ..fp8 import quantize
from .head_norm import HeadNorm


def write(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    key_scale: Tensor | None,
    value_scale: Tensor | None,
) -> None:
    """See ``write_kv``."""
    block_size = key_cache.shape[2]
    used = slot_mapping >= 0
    if not used.all():
        key, value, slot_mapping = key[used], value[used], slot_mapping[used]
    block, offset = slot_mapping // block_size, slot_mapping % block_size
    for rows, cache, scale in ((key, key_cache, key_scale), (value, value_cache, value_scale)):
        if cache.dtype == torch.float8_e4m3fn:
            # torch cannot index float8.
            cache.view(torch.uint8)[block, :, offset] = quantize(rows, scale).view(torch.uint8)
        else:
            cache[block, :, offset] = rows


def rotate(
    x: Tensor, cosine: Tensor, sine: Tensor, norm: HeadNorm | None = None, weight: Tensor | None = None
) -> Tensor:
    """x [T, heads, head_dim], normalized by ``weight`` if there is a norm, its first d elements rotated by
    cosine and sine [T, d]."""
    half = cosine.shape[1] // 2
    dtype = torch.promote_types(x.dtype, torch.float32)
    cosine, sine = cosine.to(dtype)[:, None], sine.to(dtype)[:, None]
    wide = x.to(dtype)
    if norm is not None and weight is not None:
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm.eps)
        wide = wide * scale * (norm.offset + weight.to(dtype))
    a, b = wide[..., :half], wide[..., half : 2 * half]
    turned = [a * cosine[..., :half] - b * sine[..., :half], b * cosine[..., half:] + a * sine[..., half:]]
    return torch.cat([*turned, wide[..., 2 * half :]], -1).to(x.dtype)
