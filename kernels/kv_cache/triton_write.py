"""Rotary embedding and cache writes in Triton: one program per row, or two when there are queries to
rotate."""

# Kernels are written in Triton's language; their parameters have no Python types.
# pyright: reportMissingParameterType=false, reportUnusedFunction=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..configs import FP8_CONVERSION, Architecture, architecture
from ..launch import Launch, run
from ..triton_fp8 import encode_e4m3


@triton.jit
def _store(
    cache, offsets, x, scale, heads, mask, HEADS: tl.constexpr, FP8: tl.constexpr, FP8_CODES: tl.constexpr
):
    """x [heads, some dims] into the cache, divided by its scale if that is float8."""
    if FP8:
        x = x.to(tl.float32)
        if scale is not None:
            x = tl.div_rn(x, tl.load(scale + heads, mask=heads < HEADS, other=1.0))
        # Whether the conversion saturates differs between GPUs; NaN passes this.
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
    _store(key_cache, offsets, k, key_scale, heads, mask, HEADS, FP8, FP8_CODES)
    v = tl.load(value + row * value_stride_row + heads * value_stride_head + dims, mask=mask, other=0.0)
    _store(value_cache, offsets, v, value_scale, heads, mask, HEADS, FP8, FP8_CODES)


@triton.jit
def _rotate(x, offsets, cosine, sine, pairs, mask, HALF: tl.constexpr):
    """Both halves of the rotated part of one row's heads, float32."""
    a = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(x + offsets + HALF, mask=mask, other=0.0).to(tl.float32)
    used = pairs < HALF
    cos_a = tl.load(cosine + pairs, mask=used, other=0.0).to(tl.float32)
    cos_b = tl.load(cosine + HALF + pairs, mask=used, other=0.0).to(tl.float32)
    sin_a = tl.load(sine + pairs, mask=used, other=0.0).to(tl.float32)
    sin_b = tl.load(sine + HALF + pairs, mask=used, other=0.0).to(tl.float32)
    return a * cos_a - b * sin_a, b * cos_b + a * sin_b


@triton.jit
def rotate_and_write_kernel(
    query,
    key,
    value,
    cosine,
    sine,
    rotated,
    key_cache,
    value_cache,
    slot_mapping,
    key_scale,
    value_scale,
    query_stride_row,
    query_stride_head,
    key_stride_row,
    key_stride_head,
    value_stride_row,
    value_stride_head,
    cosine_stride_row,
    sine_stride_row,
    cache_stride_block,
    cache_stride_head,
    cache_stride_position,
    QUERY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    PADDED_QUERY_HEADS: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PADDED_HALF: tl.constexpr,
    PADDED_REST: tl.constexpr,
    FP8: tl.constexpr,
    FP8_CODES: tl.constexpr,
):
    """Program (row, 0) for the queries, (row, 1) for the key and the value. HALF: half of the rotated
    dimensions."""
    row = tl.program_id(0).to(tl.int64)
    cosine += row * cosine_stride_row
    sine += row * sine_stride_row
    pairs = tl.arange(0, PADDED_HALF)[None, :]
    rest = 2 * HALF + tl.arange(0, PADDED_REST)[None, :]
    if tl.program_id(1) == 0:
        heads = tl.arange(0, PADDED_QUERY_HEADS)[:, None]
        mask = (heads < QUERY_HEADS) & (pairs < HALF)
        source = row * query_stride_row + heads * query_stride_head
        a, b = _rotate(query, source + pairs, cosine, sine, pairs, mask, HALF)
        target = rotated + (row * QUERY_HEADS + heads) * HEAD_DIM
        tl.store(target + pairs, a.to(rotated.dtype.element_ty), mask=mask)
        tl.store(target + HALF + pairs, b.to(rotated.dtype.element_ty), mask=mask)
        if 2 * HALF < HEAD_DIM:
            mask = (heads < QUERY_HEADS) & (rest < HEAD_DIM)
            tl.store(target + rest, tl.load(query + source + rest, mask=mask, other=0.0), mask=mask)
    else:
        slot = tl.load(slot_mapping + row)
        place = (slot // BLOCK_SIZE) * cache_stride_block + (slot % BLOCK_SIZE) * cache_stride_position
        kv_heads = tl.arange(0, PADDED_HEADS)[:, None]
        used = kv_heads < tl.where(slot >= 0, HEADS, 0)
        place = place + kv_heads * cache_stride_head
        key_source = row * key_stride_row + kv_heads * key_stride_head
        pair_mask = used & (pairs < HALF)
        k_a, k_b = _rotate(key, key_source + pairs, cosine, sine, pairs, pair_mask, HALF)
        # Rounded as a rotated key would be, were it not written at once.
        k_a, k_b = k_a.to(key.dtype.element_ty), k_b.to(key.dtype.element_ty)
        _store(key_cache, place + pairs, k_a, key_scale, kv_heads, pair_mask, HEADS, FP8, FP8_CODES)
        _store(key_cache, place + HALF + pairs, k_b, key_scale, kv_heads, pair_mask, HEADS, FP8, FP8_CODES)
        if 2 * HALF < HEAD_DIM:
            rest_mask = used & (rest < HEAD_DIM)
            k_rest = tl.load(key + key_source + rest, mask=rest_mask, other=0.0)
            _store(key_cache, place + rest, k_rest, key_scale, kv_heads, rest_mask, HEADS, FP8, FP8_CODES)
        dims = tl.arange(0, PADDED_DIM)[None, :]
        dim_mask = used & (dims < HEAD_DIM)
        value_source = row * value_stride_row + kv_heads * value_stride_head
        v = tl.load(value + value_source + dims, mask=dim_mask, other=0.0)
        _store(value_cache, place + dims, v, value_scale, kv_heads, dim_mask, HEADS, FP8, FP8_CODES)


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
    arguments = _cache_arguments(
        key, value, key_cache, value_cache, slot_mapping, key_scale, value_scale, arch
    )
    return [Launch(write_kernel, (rows,), arguments, num_warps=4)]


def rotate_and_write(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cosine: Tensor,
    sine: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    key_scale: Tensor | None,
    value_scale: Tensor | None,
) -> Tensor:
    """See ``rotate_and_write_kv``."""
    rotated = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    run(
        plan_rotate_and_write(
            query,
            key,
            value,
            cosine,
            sine,
            rotated,
            key_cache,
            value_cache,
            slot_mapping,
            key_scale,
            value_scale,
            arch=architecture(key.device),
        )
    )
    return rotated


def plan_rotate_and_write(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cosine: Tensor,
    sine: Tensor,
    rotated: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    key_scale: Tensor | None,
    value_scale: Tensor | None,
    *,
    arch: Architecture,
) -> list[Launch]:
    """The launches of one call of ``rotate_and_write_kv``."""
    rows, query_heads, head_dim = query.shape
    if not rows:
        return []
    for name, tensor in (("query", query), ("cosine", cosine), ("sine", sine)):
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name}: the last dimension must be contiguous, got {tensor.stride()}")
    half = cosine.shape[1] // 2
    arguments = _cache_arguments(
        key, value, key_cache, value_cache, slot_mapping, key_scale, value_scale, arch
    ) | {
        "query": query,
        "cosine": cosine,
        "sine": sine,
        "rotated": rotated,
        "query_stride_row": query.stride(0),
        "query_stride_head": query.stride(1),
        "cosine_stride_row": cosine.stride(0),
        "sine_stride_row": sine.stride(0),
        "QUERY_HEADS": query_heads,
        "HALF": half,
        "PADDED_QUERY_HEADS": triton.next_power_of_2(query_heads),
        "PADDED_HALF": triton.next_power_of_2(half),
        "PADDED_REST": triton.next_power_of_2(max(1, head_dim - 2 * half)),
    }
    return [Launch(rotate_and_write_kernel, (rows, 2), arguments, num_warps=4)]


def _cache_arguments(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    key_scale: Tensor | None,
    value_scale: Tensor | None,
    arch: Architecture,
) -> dict[str, Any]:
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
        "PADDED_HEADS": triton.next_power_of_2(heads),
        "PADDED_DIM": triton.next_power_of_2(head_dim),
        "FP8": fp8,
        "FP8_CODES": codes,
    }
