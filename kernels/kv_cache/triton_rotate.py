"""Rotary embedding in Triton, with the heads normalized before it and the cache written after it."""

# Kernels are written in Triton's language; their parameters have no Python types.
# pyright: reportMissingParameterType=false, reportUnusedFunction=false

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..configs import Architecture, architecture
from ..launch import Launch, run
from .head_norm import HeadNorm
from .triton_write import cache_arguments, store_in_cache

PAIRS: Final = 1024
"""Pairs of elements that a program rotates, about, in whole heads."""


@triton.jit
def _load(x, offsets, weight, at, mask, offset, limit):
    """Elements, float32, and the norm's factors for them."""
    values = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
    factors = 1.0
    if weight is not None:
        factors = offset + tl.load(weight + at, mask=at < limit, other=0.0).to(tl.float32)
    return values, factors


@triton.jit
def _rotate(
    x,
    source,
    weight,
    cosine,
    sine,
    pairs,
    rest,
    used,
    eps,
    offset,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
):
    """Both halves of the rotated part of one row's heads, and the unrotated rest, all float32."""
    mask = used & (pairs < HALF)
    a, factor_a = _load(x, source + pairs, weight, pairs, mask, offset, HALF)
    b, factor_b = _load(x, source + HALF + pairs, weight, HALF + pairs, mask, offset, 2 * HALF)
    others, factor_others = tl.zeros_like(a), 1.0
    if 2 * HALF < HEAD_DIM:
        others, factor_others = _load(
            x, source + rest, weight, rest, used & (rest < HEAD_DIM), offset, HEAD_DIM
        )
    if weight is not None:
        total = tl.sum(a * a + b * b, 1)
        if 2 * HALF < HEAD_DIM:
            total += tl.sum(others * others, 1)
        scale = tl.rsqrt(total / HEAD_DIM + eps)[:, None]
        a = a * scale * factor_a
        b = b * scale * factor_b
        if 2 * HALF < HEAD_DIM:
            others = others * scale * factor_others
    known = pairs < HALF
    cos_a = tl.load(cosine + pairs, mask=known, other=0.0).to(tl.float32)
    cos_b = tl.load(cosine + HALF + pairs, mask=known, other=0.0).to(tl.float32)
    sin_a = tl.load(sine + pairs, mask=known, other=0.0).to(tl.float32)
    sin_b = tl.load(sine + HALF + pairs, mask=known, other=0.0).to(tl.float32)
    return a * cos_a - b * sin_a, b * cos_b + a * sin_b, others


@triton.jit
def rotate_and_write_kernel(
    query,
    key,
    value,
    cosine,
    sine,
    rotated,
    query_weight,
    key_weight,
    key_cache,
    value_cache,
    slot_mapping,
    key_scale,
    value_scale,
    eps,
    offset,
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
    AT_ONCE: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PADDED_HALF: tl.constexpr,
    PADDED_REST: tl.constexpr,
    FP8: tl.constexpr,
    FP8_CODES: tl.constexpr,
):
    """Program (row, AT_ONCE heads): those of the query first, then those of key and value. HALF: half of the
    rotated dimensions."""
    row = tl.program_id(0).to(tl.int64)
    cosine += row * cosine_stride_row
    sine += row * sine_stride_row
    pairs = tl.arange(0, PADDED_HALF)[None, :]
    rest = 2 * HALF + tl.arange(0, PADDED_REST)[None, :]
    query_tiles: tl.constexpr = (QUERY_HEADS + AT_ONCE - 1) // AT_ONCE
    if tl.program_id(1) < query_tiles:
        heads = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)[:, None]
        used = heads < QUERY_HEADS
        source = row * query_stride_row + heads * query_stride_head
        a, b, others = _rotate(
            query, source, query_weight, cosine, sine, pairs, rest, used, eps, offset, HEAD_DIM, HALF
        )
        mask = used & (pairs < HALF)
        target = rotated + (row * QUERY_HEADS + heads) * HEAD_DIM
        tl.store(target + pairs, a.to(rotated.dtype.element_ty), mask=mask)
        tl.store(target + HALF + pairs, b.to(rotated.dtype.element_ty), mask=mask)
        if 2 * HALF < HEAD_DIM:
            tl.store(target + rest, others.to(rotated.dtype.element_ty), mask=used & (rest < HEAD_DIM))
    else:
        slot = tl.load(slot_mapping + row)
        heads = (tl.program_id(1) - query_tiles) * AT_ONCE + tl.arange(0, AT_ONCE)[:, None]
        used = heads < tl.where(slot >= 0, HEADS, 0)
        place = (slot // BLOCK_SIZE) * cache_stride_block + (slot % BLOCK_SIZE) * cache_stride_position
        place = place + heads * cache_stride_head
        key_source = row * key_stride_row + heads * key_stride_head
        k_a, k_b, k_others = _rotate(
            key, key_source, key_weight, cosine, sine, pairs, rest, used, eps, offset, HEAD_DIM, HALF
        )
        # Rounded like a rotated key that is stored before it is written to the cache.
        k_a, k_b = k_a.to(key.dtype.element_ty), k_b.to(key.dtype.element_ty)
        mask = used & (pairs < HALF)
        store_in_cache(key_cache, place + pairs, k_a, key_scale, heads, mask, HEADS, FP8, FP8_CODES)
        store_in_cache(key_cache, place + HALF + pairs, k_b, key_scale, heads, mask, HEADS, FP8, FP8_CODES)
        if 2 * HALF < HEAD_DIM:
            k_others = k_others.to(key.dtype.element_ty)
            rest_mask = used & (rest < HEAD_DIM)
            store_in_cache(
                key_cache, place + rest, k_others, key_scale, heads, rest_mask, HEADS, FP8, FP8_CODES
            )
        dims = tl.arange(0, PADDED_DIM)[None, :]
        dim_mask = used & (dims < HEAD_DIM)
        value_source = row * value_stride_row + heads * value_stride_head
        v = tl.load(value + value_source + dims, mask=dim_mask, other=0.0)
        store_in_cache(value_cache, place + dims, v, value_scale, heads, dim_mask, HEADS, FP8, FP8_CODES)


def rotate_and_write(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cosine: Tensor,
    sine: Tensor,
    norm: HeadNorm | None,
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
            norm,
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
    norm: HeadNorm | None,
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
    padded_half = triton.next_power_of_2(half)
    kv_heads = key.shape[1]
    at_once = min(triton.next_power_of_2(max(query_heads, kv_heads)), max(1, PAIRS // padded_half))
    arguments = cache_arguments(
        key, value, key_cache, value_cache, slot_mapping, key_scale, value_scale, arch
    ) | {
        "query": query,
        "cosine": cosine,
        "sine": sine,
        "rotated": rotated,
        "query_weight": None if norm is None else norm.query,
        "key_weight": None if norm is None else norm.key,
        "eps": 0.0 if norm is None else norm.eps,
        "offset": 0.0 if norm is None else norm.offset,
        "query_stride_row": query.stride(0),
        "query_stride_head": query.stride(1),
        "cosine_stride_row": cosine.stride(0),
        "sine_stride_row": sine.stride(0),
        "QUERY_HEADS": query_heads,
        "HALF": half,
        "AT_ONCE": at_once,
        "PADDED_HALF": padded_half,
        "PADDED_REST": triton.next_power_of_2(max(1, head_dim - 2 * half)),
    }
    tiles = triton.cdiv(query_heads, at_once) + triton.cdiv(kv_heads, at_once)
    return [Launch(rotate_and_write_kernel, (rows, tiles), arguments, num_warps=4)]
