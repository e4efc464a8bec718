"""Float8 KV caches: scales and quantization.

A cache of dtype float8_e4m3fn (OCP 8-bit floating point, 4 exponent and 3 mantissa bits, no infinities,
largest number 448) holds keys and values divided by a scale per KV head.
"""

from typing import Final

import torch
from torch import Tensor

LARGEST: Final = 448.0
"""The largest number of float8_e4m3fn, at which quantization saturates."""


def check_scales(cache: Tensor, *, key_scale: Tensor | None, value_scale: Tensor | None) -> None:
    """Raise ``ValueError`` naming the scale that does not fit a cache [num_blocks, kv_heads, block_size,
    head_dim]."""
    for name, scale in (("key_scale", key_scale), ("value_scale", value_scale)):
        if scale is None:
            continue
        if cache.dtype != torch.float8_e4m3fn:
            raise ValueError(f"{name}: a cache of {cache.dtype} has no scales, only one of float8_e4m3fn")
        if scale.shape != (cache.shape[1],) or scale.dtype != torch.float32:
            raise ValueError(
                f"{name}: expected float32 [{cache.shape[1]}], got {scale.dtype} {tuple(scale.shape)}"
            )


def quantize(x: Tensor, scale: Tensor | None) -> Tensor:
    """x [T, kv_heads, head_dim] over scale [kv_heads] as float8_e4m3fn, saturating."""
    x = x.float()
    if scale is not None:
        x = x / scale[:, None]
    return x.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
