"""Paged attention in Triton.

One program answers a tile of rows, each row a query and one of the heads that share a KV head, so that a tile
is full for a decoding sequence, too (GQA packing). It walks over the sequence's keys in tiles that need not
be blocks: each key's block is looked up by itself. Softmax is computed on the way (FlashAttention, arXiv
2205.14135).

Sequences with one query are cut into splits of their keys, which a second kernel adds up (FlashDecoding, Dao
et al. 2023). Where the cuts are depends on the sequence's length alone. Sequences with several queries are
not split. Both take part in one launch, each with tiles of its own: a decoding sequence's tile stays the
same, and with it every bit of its result, whether or not somebody else's prompt is in the batch.

Ideas from "The Anatomy of a Triton Attention Kernel" (arXiv 2511.11581).
"""

# Kernels are written in Triton's language, which type checkers take for Python: no parameter has a Python
# type, and operators, ranges and constants mean something else.
# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl

from ..triton_fp8 import decode_e4m3
from .triton_splits import LOWEST, split_length

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _find_sequence(query_start, tile, sequences, BLOCK_Q: tl.constexpr):
    """The sequence that a query tile is of: the last whose first tile, ``start // BLOCK_Q + index``, is not
    later."""
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
def _load_tile(
    cache,
    offsets,
    dims,
    seen,
    out_dtype: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    MASKED: tl.constexpr,
    FP8_CODES: tl.constexpr,
):
    """Keys or values [TILE, PADDED_DIM]. What is masked is zero: a weight of zero would not hide a NaN."""
    pointers = cache + offsets[:, None] + dims[None, :]
    if MASKED:
        x = tl.load(pointers, mask=seen[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
    elif HEAD_DIM != PADDED_DIM:
        x = tl.load(pointers, mask=(dims < HEAD_DIM)[None, :], other=0.0)
    else:
        x = tl.load(pointers)
    if FP8_CODES:
        x = decode_e4m3(x)
    return x.to(out_dtype)


@triton.jit
def _add_tile(
    tile,
    block,
    q,
    acc,
    top,
    total,
    key_cache,
    value_cache,
    position,
    key_begin,
    key_end,
    scale,
    cache_stride_block,
    cache_stride_position,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr,
    FP8_CODES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add the keys of one tile, each in its ``block``, to the running softmax (``acc``, its largest score
    ``top``, its ``total``)."""
    keys = tile * TILE + tl.arange(0, TILE)
    dims = tl.arange(0, PADDED_DIM)
    seen = (keys >= key_begin) & (keys < key_end)
    offsets = block.to(tl.int64) * cache_stride_block + (keys % BLOCK_SIZE) * cache_stride_position
    k = _load_tile(key_cache, offsets, dims, seen, q.dtype, HEAD_DIM, PADDED_DIM, MASKED, FP8_CODES)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    if SOFTCAP > 0:
        decay = tl.exp(tl.abs(scores) * (-2.0 / SOFTCAP))
        capped = SOFTCAP * (1.0 - decay) / (1.0 + decay)
        scores = tl.where(scores < 0, -capped, capped) * LOG2_E
    if MASKED:
        visible = keys[None, :] <= position[:, None]
        if WINDOW > 0:
            visible = visible & (keys[None, :] > position[:, None] - WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    weights = tl.exp2(scores - new_top[:, None])
    decay = tl.exp2(top - new_top)
    total = total * decay + tl.sum(weights, 1)
    v = _load_tile(value_cache, offsets, dims, seen, q.dtype, HEAD_DIM, PADDED_DIM, MASKED, FP8_CODES)
    acc = tl.dot(weights.to(v.dtype), v, acc * decay[:, None], input_precision=PRECISION)
    return acc, new_top, total


@triton.jit
def _key_range(first_position, last_position, TILE: tl.constexpr, WINDOW: tl.constexpr):
    """The first key that queries at these positions see, the end of their keys, and the same in tiles."""
    key_end = tl.maximum(last_position + 1, 0)
    key_begin = 0
    if WINDOW > 0:
        key_begin = tl.maximum(first_position - WINDOW + 1, 0)
    return key_begin, key_end, key_begin // TILE, tl.cdiv(key_end, TILE)


@triton.jit
def _answer_rows(
    query,
    key_cache,
    value_cache,
    out,
    partial,
    partial_stats,
    table,
    sinks,
    key_scale,
    value_scale,
    scale,
    split_count,
    query_stride_row,
    query_stride_head,
    out_stride_row,
    out_stride_head,
    cache_stride_block,
    cache_stride_head,
    cache_stride_position,
    kv_head,
    sequence,
    start,
    queries,
    first,
    length,
    first_position,
    last_position,
    key_begin,
    key_end,
    begin,
    end,
    split,
    single,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SPLIT: tl.constexpr,
    FP8_CODES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program's work: the queries from ``first`` on over the tiles from ``begin`` to ``end``, which with
    SPLIT are those of one ``split`` and, unless it is the ``single`` one, give a partial result."""
    BLOCK_Q: tl.constexpr = ROWS // GROUP
    row = tl.arange(0, ROWS)
    head = kv_head * GROUP + row % GROUP
    index = first + row // GROUP
    used = (row < BLOCK_Q * GROUP) & (index < queries)
    position = length - queries + index
    dims = tl.arange(0, PADDED_DIM)
    used_dims = used[:, None] & (dims < HEAD_DIM)[None, :]
    q = tl.load(
        query
        + (start + index).to(tl.int64)[:, None] * query_stride_row
        + head[:, None] * query_stride_head
        + dims[None, :],
        mask=used_dims,
        other=0.0,
    )

    acc = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    top = tl.full([ROWS], LOWEST, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if sinks is not None:
        # A sink is a score without a value; of several splits, the first has it.
        sink = tl.load(sinks + head, mask=used, other=0.0).to(tl.float32) * LOG2_E
        if SPLIT:
            if split == 0:
                top = sink
                total += 1.0
        else:
            top = sink
            total += 1.0
    if key_scale is not None:
        scale *= tl.load(key_scale + kv_head)
    if SOFTCAP <= 0:
        scale *= LOG2_E

    key_cache += kv_head.to(tl.int64) * cache_stride_head
    value_cache += kv_head.to(tl.int64) * cache_stride_head

    # Tiles that every row sees wholly need no masks: all but those at the window's begin and the causal end.
    whole_begin = begin
    if WINDOW > 0:
        whole_begin = tl.cdiv(tl.maximum(last_position - WINDOW + 1, 0), TILE)
        whole_begin = tl.minimum(tl.maximum(whole_begin, begin), end)
    whole_end = tl.maximum(tl.minimum(tl.maximum(first_position + 1, 0) // TILE, end), whole_begin)
    # A tile's blocks are looked up one step ahead: were a step's keys to wait for their own blocks, the
    # compiler could not load the keys of several steps at once.
    offset = tl.arange(0, TILE)
    keys = whole_begin * TILE + offset
    block = tl.load(table + keys // BLOCK_SIZE, mask=keys < whole_end * TILE, other=0)
    for tile in tl.range(whole_begin, whole_end, num_stages=STAGES):
        next_tile = tl.minimum(tile + 1, whole_end - 1)
        next_block = tl.load(table + (next_tile * TILE + offset) // BLOCK_SIZE)
        acc, top, total = _add_tile(
            tile, block, q, acc, top, total, key_cache, value_cache, position, key_begin, key_end,
            scale, cache_stride_block, cache_stride_position, BLOCK_SIZE, HEAD_DIM, PADDED_DIM,
            TILE, WINDOW, SOFTCAP, False, FP8_CODES, PRECISION,
        )  # fmt: skip
        block = next_block
    edges = end - whole_end
    if WINDOW > 0:
        edges += whole_begin - begin
    # They are few, so that one stage is fast enough. But what is not loaded a stage early passes through
    # registers, of which float32 has none to spare.
    EDGE_STAGES: tl.constexpr = min(STAGES, 2) if q.dtype == tl.float32 else 1
    for edge in tl.range(0, edges, num_stages=EDGE_STAGES):
        tile = whole_end + edge
        if WINDOW > 0:
            before = whole_begin - begin
            tile = tl.where(edge < before, begin + edge, tile - before)
        keys = tile * TILE + offset
        block = tl.load(table + keys // BLOCK_SIZE, mask=(keys >= key_begin) & (keys < key_end), other=0)
        acc, top, total = _add_tile(
            tile, block, q, acc, top, total, key_cache, value_cache, position, key_begin, key_end,
            scale, cache_stride_block, cache_stride_position, BLOCK_SIZE, HEAD_DIM, PADDED_DIM,
            TILE, WINDOW, SOFTCAP, True, FP8_CODES, PRECISION,
        )  # fmt: skip

    if value_scale is not None:
        acc *= tl.load(value_scale + kv_head)
    if single:
        acc /= tl.where(total > 0, total, 1.0)[:, None]
        tl.store(
            out
            + (start + index).to(tl.int64)[:, None] * out_stride_row
            + head[:, None] * out_stride_head
            + dims[None, :],
            acc.to(out.dtype.element_ty),
            mask=used_dims,
        )
    elif SPLIT:
        slot = (sequence.to(tl.int64) * KV_HEADS * GROUP + head) * split_count + split
        tl.store(partial + slot[:, None] * HEAD_DIM + dims[None, :], acc, mask=used_dims)
        tl.store(partial_stats + slot * 2, top, mask=used)
        tl.store(partial_stats + slot * 2 + 1, total, mask=used)


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
    """Program (query tile or split, KV head), the heads next to one another.

    With PREFILL, the first ``prefill_tiles`` are tiles of the sequences that have several queries. The
    others are splits of those that have one. SHORTEST and MOST are the tiles of the shortest split and the
    number of splits.
    """
    kv_head = tl.program_id(0) % KV_HEADS
    unit = tl.program_id(0) // KV_HEADS
    if PREFILL:
        if unit < prefill_tiles:
            BLOCK_Q: tl.constexpr = PREFILL_ROWS // GROUP
            # The last tiles of a prompt have the most keys: they go first.
            query_tile = prefill_tiles - 1 - unit
            sequence = _find_sequence(query_start, query_tile, sequences, BLOCK_Q)
            start = tl.load(query_start + sequence)
            queries = tl.load(query_start + sequence + 1) - start
            first = (query_tile - start // BLOCK_Q - sequence) * BLOCK_Q
            if (queries > 1) & (first < queries):
                length = tl.load(lengths + sequence)
                first_position = length - queries + first
                last_position = tl.minimum(first_position + BLOCK_Q, length) - 1
                key_begin, key_end, begin, end = _key_range(
                    first_position, last_position, PREFILL_TILE, WINDOW
                )
                _answer_rows(
                    query, key_cache, value_cache, out, partial, partial_stats,
                    block_table + sequence.to(tl.int64) * table_stride,
                    sinks, key_scale, value_scale, scale, split_count,
                    query_stride_row, query_stride_head, out_stride_row, out_stride_head,
                    cache_stride_block, cache_stride_head, cache_stride_position,
                    kv_head, sequence, start, queries, first, length, first_position, last_position,
                    key_begin, key_end, begin, end, 0, True,
                    GROUP, KV_HEADS, BLOCK_SIZE, HEAD_DIM, PADDED_DIM, PREFILL_ROWS, PREFILL_TILE,
                    PREFILL_STAGES, WINDOW, SOFTCAP, False, FP8_CODES, PRECISION,
                )  # fmt: skip
            return
        unit -= prefill_tiles
    sequence = unit % sequences
    split = unit // sequences
    start = tl.load(query_start + sequence)
    queries = tl.load(query_start + sequence + 1) - start
    if queries != 1:
        return
    length = tl.load(lengths + sequence)
    key_begin, key_end, begin, end = _key_range(length - 1, length - 1, DECODE_TILE, WINDOW)
    step = split_length(end - begin, SHORTEST, MOST)
    single = begin + step >= end
    begin += split * step
    if (split > 0) & (begin >= end):
        return
    end = tl.minimum(begin + step, end)
    _answer_rows(
        query, key_cache, value_cache, out, partial, partial_stats,
        block_table + sequence.to(tl.int64) * table_stride,
        sinks, key_scale, value_scale, scale, split_count,
        query_stride_row, query_stride_head, out_stride_row, out_stride_head,
        cache_stride_block, cache_stride_head, cache_stride_position,
        kv_head, sequence, start, queries, 0, length, length - 1, length - 1,
        key_begin, key_end, begin, end, split, single,
        GROUP, KV_HEADS, BLOCK_SIZE, HEAD_DIM, PADDED_DIM, DECODE_ROWS, DECODE_TILE,
        DECODE_STAGES, WINDOW, SOFTCAP, True, FP8_CODES, PRECISION,
    )  # fmt: skip
