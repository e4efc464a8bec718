"""Cache writes in Triton: one program per row."""

# Kernels are written in Triton's language; their parameters have no Python types.
# pyright: reportMissingParameterType=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..configs import FP8_CONVERSION, Architecture, architecture
from ..launch import Launch, run
from ..triton_fp8 import encode_e4m3


@triton.jit
def store_in_cache(
    cache, offsets, x, scale, heads, mask, HEADS: tl.constexpr, FP8: tl.constexpr, FP8_CODES: tl.constexpr
):
    """x [heads, some dims] into the cache, divided by its scale if that is float8."""
    if FP8:
        x = x.to(tl.float32)
        if scale is not None:
            x = tl.div_rn(x, tl.load(scale + heads, mask=heads < HEADS, other=1.0))
        # GPUs differ in whether the conversion saturates; NaN passes this.
        x = tl.where(tl.abs(x) > 448.0, tl.where(x > 0, 448.0, -448.0), x)
    if FP8_CODES:
        x = encode_e4m3(x)
    tl.store(cache + offsets, x.to(cache.dtype.element_ty), mask=mask)


@triton.jit
def write_kernel(
    key,
    value,
    key_cache,
    value_cache,
    slot_mapping,
    key_scale,
    value_scale,
    key_stride_row,
    key_stride_head,
    value_stride_row,
    value_stride_head,
    cache_stride_block,
    cache_stride_head,
    cache_stride_position,
    HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    FP8: tl.constexpr,
    FP8_CODES: tl.constexpr,
):
    """Program (row,)."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + row)
    if slot < 0:
        return
    heads = tl.arange(0, PADDED_HEADS)[:, None]
    dims = tl.arange(0, PADDED_DIM)[None, :]
    mask = (heads < HEADS) & (dims < HEAD_DIM)
    place = (slot // BLOCK_SIZE) * cache_stride_block + (slot % BLOCK_SIZE) * cache_stride_position
    offsets = place + heads * cache_stride_head + dims
    k = tl.load(key + row * key_stride_row + heads * key_stride_head + dims, mask=mask, other=0.0)
    store_in_cache(key_cache, offsets, k, key_scale, heads, mask, HEADS, FP8, FP8_CODES)
    v = tl.load(value + row * value_stride_row + heads * value_stride_head + dims, mask=mask, other=0.0)
    store_in_cache(value_cache, offsets, v, value_scale, heads, mask, HEADS, FP8, FP8_CODES)


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
    arch = architecture(key.device)
    run(plan_write(key, value, key_cache, value_cache, slot_mapping, key_scale, value_scale, arch=arch))


def plan_write(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    key_scale: Tensor | None,
    value_scale: Tensor | None,
    *,
    arch: Architecture,
) -> list[Launch]:
    """The launches of one call of ``write_kv``."""
    rows = key.shape[0]
    if not rows:
        return []
    arguments = cache_arguments(
        key, value, key_cache, value_cache, slot_mapping, key_scale, value_scale, arch
    )
    arguments["PADDED_HEADS"] = triton.next_power_of_2(key.shape[1])
    return [Launch(write_kernel, (rows,), arguments, num_warps=4)]


def cache_arguments(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    key_scale: Tensor | None,
    value_scale: Tensor | None,
    arch: Architecture,
) -> dict[str, Any]:
    """Arguments common to the kernels that write to the cache."""
    for name, tensor in (("key", key), ("value", value), ("key_cache", key_cache)):
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name}: head_dim must be contiguous, got strides {tensor.stride()}")
    if key_cache.stride() != value_cache.stride():
        raise ValueError(f"value_cache: strides {value_cache.stride()} differ from {key_cache.stride()}")
    fp8 = key_cache.dtype == torch.float8_e4m3fn
    codes = fp8 and arch not in FP8_CONVERSION
    if codes:
        key_cache, value_cache = key_cache.view(torch.uint8), value_cache.view(torch.uint8)
    _, heads, head_dim = key.shape
    return {
        "key": key,
        "value": value,
        "key_cache": key_cache,
        "value_cache": value_cache,
        "slot_mapping": slot_mapping,
        "key_scale": key_scale,
        "value_scale": value_scale,
        "key_stride_row": key.stride(0),
        "key_stride_head": key.stride(1),
        "value_stride_row": value.stride(0),
        "value_stride_head": value.stride(1),
        "cache_stride_block": key_cache.stride(0),
        "cache_stride_head": key_cache.stride(1),
        "cache_stride_position": key_cache.stride(2),
        "HEADS": heads,
        "BLOCK_SIZE": key_cache.shape[2],
        "HEAD_DIM": head_dim,
        "PADDED_DIM": triton.next_power_of_2(head_dim),
        "FP8": fp8,
        "FP8_CODES": codes,
    }
