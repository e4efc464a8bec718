"""Paged attention in Triton: online softmax over tiles of keys, with GQA packing and split KV.

One program computes the output of a tile of rows, each row a query and one of the heads that share a KV head,
so that a tile is full for a decoding sequence, too (GQA packing). It iterates over the sequence's keys in
tiles that need not be blocks: each key's block is looked up in the block table. Softmax is online
(FlashAttention, arXiv 2205.14135): per row, the running maximum ``m_i`` of the scores, the normalizer
``l_i`` (sum of exponentials relative to it) and the accumulator ``acc`` of weighted values.

Decoding sequences are cut into splits of their keys, which a second kernel reduces (FlashDecoding, Dao et al.
2023). Where the cuts are depends on the sequence's length alone. Sequences with several queries are not
split. Both are in one launch, each with tiles of its own: a decoding sequence's tile is the same, and with it
every bit of its output, whether or not the batch has a prefill.

Ideas from "The Anatomy of a Triton Attention Kernel" (arXiv 2511.11581).
"""

# Kernels are written in Triton's language, which type checkers take for Python: no parameter has a Python
# type, and operators, ranges and constants mean something else.
# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..triton_fp8 import decode_e4m3
from .triton_splits import LOWEST, split_length

LOG2_E = tl.constexpr(1.4426950408889634)


class Inputs(NamedTuple):
    """Tensors that the kernel reads, and the score scale. Sinks and scales may be None."""

    query: Any
    key_cache: Any
    value_cache: Any
    sinks: Any
    key_scale: Any
    value_scale: Any
    scale: Any


class Outputs(NamedTuple):
    """Tensors that the kernel writes: the output, or the splits' accumulators and (m_i, l_i)."""

    out: Any
    partial: Any
    partial_stats: Any
    split_count: Any


class Strides(NamedTuple):
    """Strides, in elements; head_dim is contiguous."""

    query_row: Any
    query_head: Any
    out_row: Any
    out_head: Any
    cache_block: Any
    cache_head: Any
    cache_position: Any


class Queries(NamedTuple):
    """The queries of one tile."""

    kv_head: Any
    sequence: Any
    start: Any
    """Flat row of the sequence's first query."""
    count: Any
    """Queries that the sequence has."""
    first: Any
    """Index, among those, of the tile's first."""
    length: Any
    """Tokens that the sequence has in the cache."""
    first_position: Any
    last_position: Any


class Keys(NamedTuple):
    """The keys that one tile of queries attends to."""

    table: Any
    """The sequence's row of the block table."""
    first: Any
    """First visible key."""
    end: Any
    """End of the visible keys."""
    first_tile: Any
    end_tile: Any


class Layer(NamedTuple):
    """Compile-time constants of the layer."""

    GROUP: Any
    KV_HEADS: Any
    BLOCK_SIZE: Any
    HEAD_DIM: Any
    PADDED_DIM: Any
    WINDOW: Any
    SOFTCAP: Any
    FP8_CODES: Any
    PRECISION: Any


class TileShape(NamedTuple):
    """Compile-time constants of a program: rows, keys of a step, pipeline stages, whether keys are split."""

    ROWS: Any
    KEYS: Any
    STAGES: Any
    SPLIT: Any


@triton.jit
def _find_sequence(query_start, tile, sequences, BLOCK_Q: tl.constexpr):
    """Sequence of a query tile: the last whose first tile, ``start // BLOCK_Q + index``, is not later."""
    low = 0
    high = sequences
    while low < high:
        middle = (low + high) // 2
        if tl.load(query_start + middle) // BLOCK_Q + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def _load_tile(cache, offsets, dims, visible, out_dtype: tl.constexpr, layer, MASKED: tl.constexpr):
    """Keys or values [keys, PADDED_DIM]. Masked elements are zero: a weight of zero would not hide a NaN."""
    pointers = cache + offsets[:, None] + dims[None, :]
    if MASKED:
        x = tl.load(pointers, mask=visible[:, None] & (dims < layer.HEAD_DIM)[None, :], other=0.0)
    elif layer.HEAD_DIM != layer.PADDED_DIM:
        x = tl.load(pointers, mask=(dims < layer.HEAD_DIM)[None, :], other=0.0)
    else:
        x = tl.load(pointers)
    if layer.FP8_CODES:
        x = decode_e4m3(x)
    return x.to(out_dtype)


@triton.jit
def _online_softmax_step(
    q, m_i, l_i, acc, tile, block, position, key_cache, value_cache, scale, strides, keys, layer, shape,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Update running maximum, normalizer and accumulator with one tile of keys, each in its ``block``."""
    key = tile * shape.KEYS + tl.arange(0, shape.KEYS)
    dims = tl.arange(0, layer.PADDED_DIM)
    in_range = (key >= keys.first) & (key < keys.end)
    offsets = block.to(tl.int64) * strides.cache_block + (key % layer.BLOCK_SIZE) * strides.cache_position
    k = _load_tile(key_cache, offsets, dims, in_range, q.dtype, layer, MASKED)
    scores = tl.dot(q, tl.trans(k), input_precision=layer.PRECISION) * scale
    if layer.SOFTCAP > 0:
        decay = tl.exp(tl.abs(scores) * (-2.0 / layer.SOFTCAP))
        capped = layer.SOFTCAP * (1.0 - decay) / (1.0 + decay)
        scores = tl.where(scores < 0, -capped, capped) * LOG2_E
    if MASKED:
        visible = key[None, :] <= position[:, None]
        if layer.WINDOW > 0:
            visible = visible & (key[None, :] > position[:, None] - layer.WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
    m_new = tl.maximum(m_i, tl.max(scores, 1))
    p = tl.exp2(scores - m_new[:, None])
    alpha = tl.exp2(m_i - m_new)
    l_i = l_i * alpha + tl.sum(p, 1)
    v = _load_tile(value_cache, offsets, dims, in_range, q.dtype, layer, MASKED)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision=layer.PRECISION)
    return m_new, l_i, acc


@triton.jit
def _visible_keys(table, first_position, last_position, TILE: tl.constexpr, WINDOW: tl.constexpr):
    """The keys, and tiles of keys, that queries at these positions attend to."""
    end = tl.maximum(last_position + 1, 0)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(first_position - WINDOW + 1, 0)
    return Keys(table, first, end, first // TILE, tl.cdiv(end, TILE))


@triton.jit
def _attend_tile(inputs, outputs, strides, queries, keys, split, single, layer, shape):
    """Attention of one tile of queries over ``keys``. With SPLIT these are one split's, and unless it is the
    sequence's ``single`` one, the result is partial: acc, m_i and l_i."""
    BLOCK_Q: tl.constexpr = shape.ROWS // layer.GROUP
    row = tl.arange(0, shape.ROWS)
    head = queries.kv_head * layer.GROUP + row % layer.GROUP
    index = queries.first + row // layer.GROUP
    used = (row < BLOCK_Q * layer.GROUP) & (index < queries.count)
    position = queries.length - queries.count + index
    dims = tl.arange(0, layer.PADDED_DIM)
    used_dims = used[:, None] & (dims < layer.HEAD_DIM)[None, :]
    q = tl.load(
        inputs.query
        + (queries.start + index).to(tl.int64)[:, None] * strides.query_row
        + head[:, None] * strides.query_head
        + dims[None, :],
        mask=used_dims,
        other=0.0,
    )

    acc = tl.zeros([shape.ROWS, layer.PADDED_DIM], tl.float32)
    m_i = tl.full([shape.ROWS], LOWEST, tl.float32)
    l_i = tl.zeros([shape.ROWS], tl.float32)
    if inputs.sinks is not None:
        # A sink is a score without a value; of several splits, the first has it.
        sink = tl.load(inputs.sinks + head, mask=used, other=0.0).to(tl.float32) * LOG2_E
        if shape.SPLIT:
            if split == 0:
                m_i = sink
                l_i += 1.0
        else:
            m_i = sink
            l_i += 1.0
    scale = inputs.scale
    if inputs.key_scale is not None:
        scale *= tl.load(inputs.key_scale + queries.kv_head)
    if layer.SOFTCAP <= 0:
        scale *= LOG2_E

    key_cache = inputs.key_cache + queries.kv_head.to(tl.int64) * strides.cache_head
    value_cache = inputs.value_cache + queries.kv_head.to(tl.int64) * strides.cache_head

    # Tiles wholly visible to every row need no masks: all but those at the window's start and the causal end.
    begin, end = keys.first_tile, keys.end_tile
    whole_begin = begin
    if layer.WINDOW > 0:
        whole_begin = tl.cdiv(tl.maximum(queries.last_position - layer.WINDOW + 1, 0), shape.KEYS)
        whole_begin = tl.minimum(tl.maximum(whole_begin, begin), end)
    whole_end = tl.maximum(queries.first_position + 1, 0) // shape.KEYS
    whole_end = tl.maximum(tl.minimum(whole_end, end), whole_begin)
    # A tile's blocks are looked up one step ahead: were a step's keys to wait for their own blocks, the
    # compiler could not pipeline the loads of keys over several steps.
    offset = tl.arange(0, shape.KEYS)
    key = whole_begin * shape.KEYS + offset
    block = tl.load(keys.table + key // layer.BLOCK_SIZE, mask=key < whole_end * shape.KEYS, other=0)
    for tile in tl.range(whole_begin, whole_end, num_stages=shape.STAGES):
        next_tile = tl.minimum(tile + 1, whole_end - 1)
        next_block = tl.load(keys.table + (next_tile * shape.KEYS + offset) // layer.BLOCK_SIZE)
        m_i, l_i, acc = _online_softmax_step(
            q, m_i, l_i, acc, tile, block, position, key_cache, value_cache, scale, strides, keys, layer,
            shape, False,
        )  # fmt: skip
        block = next_block
    edges = end - whole_end
    if layer.WINDOW > 0:
        edges += whole_begin - begin
    # Masked tiles are few, so that one stage is fast enough. But what is not loaded a stage early passes
    # through registers, of which float32 has none to spare.
    EDGE_STAGES: tl.constexpr = min(shape.STAGES, 2) if q.dtype == tl.float32 else 1
    for edge in tl.range(0, edges, num_stages=EDGE_STAGES):
        tile = whole_end + edge
        if layer.WINDOW > 0:
            before = whole_begin - begin
            tile = tl.where(edge < before, begin + edge, tile - before)
        key = tile * shape.KEYS + offset
        block = tl.load(
            keys.table + key // layer.BLOCK_SIZE, mask=(key >= keys.first) & (key < keys.end), other=0
        )
        m_i, l_i, acc = _online_softmax_step(
            q, m_i, l_i, acc, tile, block, position, key_cache, value_cache, scale, strides, keys, layer,
            shape, True,
        )  # fmt: skip

    if inputs.value_scale is not None:
        acc *= tl.load(inputs.value_scale + queries.kv_head)
    if single:
        acc /= tl.where(l_i > 0, l_i, 1.0)[:, None]
        tl.store(
            outputs.out
            + (queries.start + index).to(tl.int64)[:, None] * strides.out_row
            + head[:, None] * strides.out_head
            + dims[None, :],
            acc.to(outputs.out.dtype.element_ty),
            mask=used_dims,
        )
    elif shape.SPLIT:
        slot = queries.sequence.to(tl.int64) * layer.KV_HEADS * layer.GROUP + head
        slot = slot * outputs.split_count + split
        tl.store(outputs.partial + slot[:, None] * layer.HEAD_DIM + dims[None, :], acc, mask=used_dims)
        tl.store(outputs.partial_stats + slot * 2, m_i, mask=used)
        tl.store(outputs.partial_stats + slot * 2 + 1, l_i, mask=used)


# Numbers that differ from batch to batch must not select a different compilation.
@triton.jit(do_not_specialize=["sequences", "prefill_tiles", "split_count", "table_stride"])
def attention_kernel(
    query,
    key_cache,
    value_cache,
    out,
    partial,
    partial_stats,
    query_start,
    lengths,
    block_table,
    sinks,
    key_scale,
    value_scale,
    scale,
    sequences,
    prefill_tiles,
    split_count,
    table_stride,
    query_stride_row,
    query_stride_head,
    out_stride_row,
    out_stride_head,
    cache_stride_block,
    cache_stride_head,
    cache_stride_position,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PREFILL: tl.constexpr,
    PREFILL_ROWS: tl.constexpr,
    PREFILL_TILE: tl.constexpr,
    PREFILL_STAGES: tl.constexpr,
    DECODE_ROWS: tl.constexpr,
    DECODE_TILE: tl.constexpr,
    DECODE_STAGES: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SHORTEST: tl.constexpr,
    MOST: tl.constexpr,
    FP8_CODES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (query tile or split, KV head), the KV heads of a tile next to one another.

    With PREFILL, the first ``prefill_tiles`` are tiles of the sequences that have several queries. The
    others are splits of those that have one. SHORTEST and MOST are the tiles of the shortest split and the
    number of splits.
    """
    inputs = Inputs(query, key_cache, value_cache, sinks, key_scale, value_scale, scale)
    outputs = Outputs(out, partial, partial_stats, split_count)
    strides = Strides(
        query_stride_row, query_stride_head, out_stride_row, out_stride_head,
        cache_stride_block, cache_stride_head, cache_stride_position,
    )  # fmt: skip
    # Constants are grouped where they are passed: assigned to a name, Triton would make tensors of them.
    kv_head = tl.program_id(0) % KV_HEADS
    unit = tl.program_id(0) // KV_HEADS
    if PREFILL:
        if unit < prefill_tiles:
            BLOCK_Q: tl.constexpr = PREFILL_ROWS // GROUP
            # The last tiles of a prefill have the most keys: they go first.
            query_tile = prefill_tiles - 1 - unit
            sequence = _find_sequence(query_start, query_tile, sequences, BLOCK_Q)
            start = tl.load(query_start + sequence)
            count = tl.load(query_start + sequence + 1) - start
            first = (query_tile - start // BLOCK_Q - sequence) * BLOCK_Q
            if (count > 1) & (first < count):
                length = tl.load(lengths + sequence)
                first_position = length - count + first
                last_position = tl.minimum(first_position + BLOCK_Q, length) - 1
                queries = Queries(
                    kv_head, sequence, start, count, first, length, first_position, last_position
                )
                table = block_table + sequence.to(tl.int64) * table_stride
                keys = _visible_keys(table, first_position, last_position, PREFILL_TILE, WINDOW)
                _attend_tile(
                    inputs, outputs, strides, queries, keys, 0, True,
                    Layer(
                        GROUP, KV_HEADS, BLOCK_SIZE, HEAD_DIM, PADDED_DIM, WINDOW, SOFTCAP, FP8_CODES,
                        PRECISION,
                    ),
                    TileShape(PREFILL_ROWS, PREFILL_TILE, PREFILL_STAGES, False),
                )  # fmt: skip
            return
        unit -= prefill_tiles
    sequence = unit % sequences
    split = unit // sequences
    start = tl.load(query_start + sequence)
    count = tl.load(query_start + sequence + 1) - start
    if count != 1:
        return
    length = tl.load(lengths + sequence)
    table = block_table + sequence.to(tl.int64) * table_stride
    keys = _visible_keys(table, length - 1, length - 1, DECODE_TILE, WINDOW)
    step = split_length(keys.end_tile - keys.first_tile, SHORTEST, MOST)
    single = keys.first_tile + step >= keys.end_tile
    begin = keys.first_tile + split * step
    if (split > 0) & (begin >= keys.end_tile):
        return
    keys = Keys(table, keys.first, keys.end, begin, tl.minimum(begin + step, keys.end_tile))
    queries = Queries(kv_head, sequence, start, count, 0, length, length - 1, length - 1)
    _attend_tile(
        inputs, outputs, strides, queries, keys, split, single,
        Layer(GROUP, KV_HEADS, BLOCK_SIZE, HEAD_DIM, PADDED_DIM, WINDOW, SOFTCAP, FP8_CODES, PRECISION),
        TileShape(DECODE_ROWS, DECODE_TILE, DECODE_STAGES, True),
    )  # fmt: skip
