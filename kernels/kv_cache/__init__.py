"""Writes of keys and values to the paged KV cache, with rotary embedding and head norms on request."""

import torch
from torch import Tensor

from ..dispatch import Implementation, choose
from ..fp8 import check_scales
from .cpu_rotate import rotate as rotate_on_cpu
from .cpu_write import write as write_on_cpu
from .head_norm import HeadNorm

__all__ = ["HeadNorm", "rotate_and_write_kv", "write_kv"]


def write_kv(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    implementation: Implementation | None = None,
) -> None:
    """Write each row's key and value to its slot of the cache.

    Args:
        key: [T, kv_heads, head_dim], float32, float16 or bfloat16.
        value: as ``key``.
        key_cache: [num_blocks, kv_heads, block_size, head_dim], contiguous, the key's dtype or float8_e4m3fn;
            written in place.
        value_cache: as ``key_cache``.
        slot_mapping: int64 [T]: ``block * block_size + offset``, or -1 for a row of padding, which is
            skipped. No slot may occur twice.
        key_scale: float32 [kv_heads], for a float8 cache: keys are stored divided by this, saturated at
            448.
        value_scale: as ``key_scale``.
        implementation: ``"torch"``, ``"triton"`` or None for the default one.

    Raises:
        ValueError: when shapes, dtypes or strides do not fit; the message names the argument.
    """
    _check(key, value, key_cache, value_cache, slot_mapping)
    check_scales(key_cache, key_scale=key_scale, value_scale=value_scale)
    if choose(key, implementation) == "triton":
        from .triton_write import write as write_with_triton

        write_with_triton(key, value, key_cache, value_cache, slot_mapping, key_scale, value_scale)
    else:
        write_on_cpu(key, value, key_cache, value_cache, slot_mapping, key_scale, value_scale)


def rotate_and_write_kv(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cosine: Tensor,
    sine: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    norm: HeadNorm | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    implementation: Implementation | None = None,
) -> Tensor:
    """Apply rotary position embedding to queries and keys, and write the keys and the values to the cache.

    The rotation is the one of GPT-NeoX and Llama (RoFormer, arXiv 2104.09864, pairing element ``i`` with
    element ``i + d / 2`` of the first ``d`` elements of a head; the rest of the head passes unchanged),
    computed in float32.

    Args:
        query: [T, heads, head_dim], float32, float16 or bfloat16.
        key: [T, kv_heads, head_dim].
        value: as ``key``.
        cosine: [T, d] with even ``d <= head_dim``: the cosines of each row's position, as transformers'
            rotary embeddings give them (their two halves are those of the two elements of a pair).
        sine: as ``cosine``.
        norm: normalizes the heads of queries and keys first (Qwen 3, Gemma 3), without rounding in between.
        key_cache, value_cache, slot_mapping, key_scale, value_scale, implementation: as in ``write_kv``.

    Returns:
        The rotated query, [T, heads, head_dim]. Rows of padding are rotated as well.

    Raises:
        ValueError: when shapes, dtypes or strides do not fit; the message names the argument.
    """
    _check(key, value, key_cache, value_cache, slot_mapping)
    check_scales(key_cache, key_scale=key_scale, value_scale=value_scale)
    if query.dim() != 3 or query.shape[0] != key.shape[0] or query.shape[2] != key.shape[2]:
        raise ValueError(f"query: {tuple(query.shape)} does not fit the key's {tuple(key.shape)}")
    rows, rotated = cosine.shape if cosine.dim() == 2 else (-1, -1)
    count, _, head_dim = key.shape
    if rows != count or rotated % 2 or not 0 < rotated <= head_dim:
        raise ValueError(
            f"cosine: expected [{count}, an even number up to {head_dim}], got {tuple(cosine.shape)}"
        )
    if sine.shape != cosine.shape or sine.dtype != cosine.dtype:
        raise ValueError(f"sine: {sine.dtype} {tuple(sine.shape)} differs from cosine")
    if norm is not None:
        norm.check(head_dim)
    if choose(key, implementation) == "triton":
        from .triton_rotate import rotate_and_write as rotate_and_write_with_triton

        return rotate_and_write_with_triton(
            query,
            key,
            value,
            cosine,
            sine,
            norm,
            key_cache,
            value_cache,
            slot_mapping,
            key_scale,
            value_scale,
        )
    query, key = rotate_on_cpu(query, key, cosine, sine, norm)
    write_on_cpu(key, value, key_cache, value_cache, slot_mapping, key_scale, value_scale)
    return query


def _check(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    if key.dim() != 3:
        raise ValueError(f"key: expected [T, kv_heads, head_dim], got shape {tuple(key.shape)}")
    if value.shape != key.shape or value.dtype != key.dtype:
        raise ValueError(f"value: {value.dtype} {tuple(value.shape)} differs from the key in shape or dtype")
    rows, kv_heads, head_dim = key.shape
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        if cache.dim() != 4 or (cache.shape[1], cache.shape[3]) != (kv_heads, head_dim):
            shape = f"[num_blocks, {kv_heads}, block_size, {head_dim}]"
            raise ValueError(f"{name}: expected {shape}, got {tuple(cache.shape)}")
        if cache.dtype not in (key.dtype, torch.float8_e4m3fn):
            raise ValueError(f"{name}: {cache.dtype} is neither the key's {key.dtype} nor float8_e4m3fn")
        if not cache.is_contiguous():
            raise ValueError(f"{name}: not contiguous, its strides are {cache.stride()}")
    if value_cache.shape != key_cache.shape or value_cache.dtype != key_cache.dtype:
        raise ValueError("value_cache: shape or dtype differs from key_cache")
    if slot_mapping.shape != (rows,) or slot_mapping.dtype != torch.int64:
        given = f"{slot_mapping.dtype} {tuple(slot_mapping.shape)}"
        raise ValueError(f"slot_mapping: expected int64 [{rows}], got {given}")
