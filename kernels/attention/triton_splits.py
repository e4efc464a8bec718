"""Split KV: the length of a decoding sequence's splits, and the reduction of their partial results."""

# See triton_kernels.py about types.
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl

LOWEST = tl.constexpr(-1e30)
"""Below every score; not infinite, since the difference of two infinities is not a number."""


@triton.jit
def split_length(tiles, SHORTEST: tl.constexpr, MOST: tl.constexpr):
    """Tiles in each split of a sequence of ``tiles`` tiles."""
    return tl.maximum(SHORTEST, tl.cdiv(tiles, MOST))


@triton.jit(do_not_specialize=["split_count"])
def reduce_splits_kernel(
    partial,
    partial_stats,
    out,
    query_start,
    lengths,
    split_count,
    out_stride_row,
    out_stride_head,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    SHORTEST: tl.constexpr,
    MOST: tl.constexpr,
    PADDED_MOST: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Program (sequence, head): reduce the splits of a sequence that has more than one."""
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    start = tl.load(query_start + sequence)
    if tl.load(query_start + sequence + 1) - start != 1:
        return
    length = tl.load(lengths + sequence)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(length - WINDOW, 0) // TILE
    tiles = tl.cdiv(length, TILE) - begin
    count = tl.cdiv(tiles, split_length(tiles, SHORTEST, MOST))
    if count <= 1:
        return

    slot = (sequence.to(tl.int64) * tl.num_programs(1) + head) * split_count
    split = tl.arange(0, PADDED_MOST)
    split_m = tl.load(partial_stats + (slot + split) * 2, mask=split < count, other=LOWEST)
    split_l = tl.load(partial_stats + (slot + split) * 2 + 1, mask=split < count, other=0.0)
    m_i = tl.max(split_m, 0)
    l_i = tl.sum(split_l * tl.exp2(split_m - m_i), 0)

    # The number added at once is fixed, so that the order of the sum depends on the sequence alone.
    dims = tl.arange(0, PADDED_DIM)
    acc = tl.zeros([PADDED_DIM], tl.float32)
    for low in tl.range(0, count, AT_ONCE):
        some = low + tl.arange(0, AT_ONCE)
        some_m = tl.load(partial_stats + (slot + some) * 2, mask=some < count, other=LOWEST)
        part = tl.load(
            partial + (slot + some)[:, None] * HEAD_DIM + dims[None, :],
            mask=(some < count)[:, None] & (dims < HEAD_DIM)[None, :],
            other=0.0,
        )
        acc += tl.sum(part * tl.exp2(some_m - m_i)[:, None], 0)
    tl.store(
        out + start.to(tl.int64) * out_stride_row + head * out_stride_head + dims,
        (acc / l_i).to(out.dtype.element_ty),
        mask=dims < HEAD_DIM,
    )
