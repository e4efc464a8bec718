"""Paged attention in Triton: one launch for any batch, and the sum of splits where there are some."""

from typing import Any, Final

import torch
import triton
from torch import Tensor

from ..configs import (
    FP8_CONVERSION,
    Architecture,
    AttentionTiles,
    Splits,
    architecture,
    attention_tiles,
    splits,
)
from ..launch import Launch, run
from .batch import AttentionBatch
from .triton_kernels import attention_kernel
from .triton_splits import reduce_splits_kernel

SPLITS_AT_ONCE: Final = 8


def attend(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: AttentionBatch,
    out: Tensor,
    *,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
    key_scale: Tensor | None,
    value_scale: Tensor | None,
) -> None:
    """See ``paged_attention``."""
    run(
        plan(
            query,
            key_cache,
            value_cache,
            batch,
            out,
            scale=scale,
            sliding_window=sliding_window,
            softcap=softcap,
            sinks=sinks,
            key_scale=key_scale,
            value_scale=value_scale,
            arch=architecture(query.device),
        )
    )


def plan(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: AttentionBatch,
    out: Tensor,
    *,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
    key_scale: Tensor | None,
    value_scale: Tensor | None,
    arch: Architecture,
    tiles: AttentionTiles | None = None,
    split: Splits | None = None,
) -> list[Launch]:
    """The launches of one call. Tiles and splits are the table's unless given."""
    if query.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(f"query: Triton takes float32, float16 and bfloat16, got {query.dtype}")
    for name, tensor in (
        ("query", query),
        ("key_cache", key_cache),
        ("value_cache", value_cache),
        ("out", out),
    ):
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name}: head_dim must be contiguous, got strides {tensor.stride()}")
    if key_cache.stride() != value_cache.stride():
        raise ValueError(f"value_cache: strides {value_cache.stride()} differ from {key_cache.stride()}")
    total, heads, head_dim = query.shape
    _, kv_heads, block_size, _ = key_cache.shape
    sequences = batch.lengths.shape[0]
    if not sequences or not total:
        return []
    group = heads // kv_heads
    fp8 = key_cache.dtype == torch.float8_e4m3fn
    codes = fp8 and arch not in FP8_CONVERSION
    if codes:
        key_cache, value_cache = key_cache.view(torch.uint8), value_cache.view(torch.uint8)
    tiles = tiles or attention_tiles(arch, head_dim, query.element_size())
    split = split or splits(arch, kv_heads)

    span = min(batch.max_length, sliding_window or batch.max_length)
    shortest = -(-split.shortest // tiles.decode.keys)
    # A window may begin within a tile: one more than it fills.
    longest = -(-span // tiles.decode.keys) + 1
    split_count = max(1, min(split.most, -(-longest // shortest)))
    workspace = (sequences, heads, split_count)
    partial = query.new_empty((*workspace, head_dim), dtype=torch.float32)
    partial_stats = query.new_empty((*workspace, 2), dtype=torch.float32)

    prefill = batch.max_query > 1
    prefill_rows, decode_rows = (
        max(tile.rows, triton.next_power_of_2(group)) for tile in (tiles.prefill, tiles.decode)
    )
    prefill_tiles = total // (prefill_rows // group) + sequences if prefill else 0
    padded_dim = max(16, triton.next_power_of_2(head_dim))
    arguments: dict[str, Any] = {
        "query": query,
        "key_cache": key_cache,
        "value_cache": value_cache,
        "out": out,
        "partial": partial,
        "partial_stats": partial_stats,
        "query_start": batch.query_start,
        "lengths": batch.lengths,
        "block_table": batch.block_table,
        "sinks": sinks,
        "key_scale": key_scale,
        "value_scale": value_scale,
        "scale": scale,
        "sequences": sequences,
        "prefill_tiles": prefill_tiles,
        "split_count": split_count,
        "table_stride": batch.block_table.stride(0),
        "query_stride_row": query.stride(0),
        "query_stride_head": query.stride(1),
        "out_stride_row": out.stride(0),
        "out_stride_head": out.stride(1),
        "cache_stride_block": key_cache.stride(0),
        "cache_stride_head": key_cache.stride(1),
        "cache_stride_position": key_cache.stride(2),
        "GROUP": group,
        "KV_HEADS": kv_heads,
        "BLOCK_SIZE": block_size,
        "HEAD_DIM": head_dim,
        "PADDED_DIM": padded_dim,
        "PREFILL": prefill,
        "PREFILL_ROWS": prefill_rows,
        "PREFILL_TILE": tiles.prefill.keys,
        "PREFILL_STAGES": tiles.prefill.stages,
        "DECODE_ROWS": decode_rows,
        "DECODE_TILE": tiles.decode.keys,
        "DECODE_STAGES": tiles.decode.stages,
        "WINDOW": sliding_window or 0,
        "SOFTCAP": softcap or 0.0,
        "SHORTEST": shortest,
        "MOST": split.most,
        "FP8_CODES": codes,
        "PRECISION": "tf32x3" if arch.startswith("sm_") else "ieee",
    }
    grid = ((prefill_tiles + sequences * split_count) * kv_heads,)
    launches = [Launch(attention_kernel, grid, arguments, tiles.warps)]
    if split_count > 1:
        arguments = {
            "partial": partial,
            "partial_stats": partial_stats,
            "out": out,
            "query_start": batch.query_start,
            "lengths": batch.lengths,
            "split_count": split_count,
            "out_stride_row": out.stride(0),
            "out_stride_head": out.stride(1),
            "HEAD_DIM": head_dim,
            "PADDED_DIM": padded_dim,
            "TILE": tiles.decode.keys,
            "WINDOW": sliding_window or 0,
            "SHORTEST": shortest,
            "MOST": split.most,
            "PADDED_MOST": triton.next_power_of_2(split.most),
            "AT_ONCE": SPLITS_AT_ONCE,
        }
        launches.append(Launch(reduce_splits_kernel, (sequences, heads), arguments, num_warps=4))
    return launches
