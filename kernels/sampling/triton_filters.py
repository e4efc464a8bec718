"""Top-k, nucleus (row_max-p) and min-p in Triton, as one cutoff on the logit, found without sorting.

The cutoff is the largest that keeps enough tokens, or enough probability. Each pass over the row tries three
values at once and keeps the quarter between the last that is low enough and the first that is not. Chunks
whose maximum is below are not read again, so passes soon become short. (Searching by pivots
instead of sorting: FlashInfer's and Qrita's samplers, arXiv 2501.01005 and 2602.01518.)
"""

# Kernels are written in Triton's language, which type checkers take for Python: no parameter has a Python
# type, and operators, ranges and constants mean something else.
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl

from .noise import LARGEST_NOISE, SMALLEST_NOISE
from .triton_logits import load_logits

REACH = tl.constexpr(LARGEST_NOISE - SMALLEST_NOISE)


@triton.jit
def load_row_max(maxima, row, CHUNKS: tl.constexpr, PADDED_CHUNKS: tl.constexpr):
    """The row's maximum."""
    chunk = tl.arange(0, PADDED_CHUNKS)
    return tl.max(tl.load(maxima + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=float("-inf")), 0)


@triton.jit
def order_of(y):
    """float32 as an int32 of the same order; both zeros are 0."""
    bits = y.to(tl.int32, bitcast=True)
    return tl.where(y == 0, 0, bits ^ ((bits >> 31) & 0x7FFFFFFF))


@triton.jit
def _totals(
    low,
    middle,
    high,
    floor,
    row_max,
    row_temperature,
    logits,
    row,
    logits_stride,
    counts,
    repetition,
    presence,
    frequency,
    maxima,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """How many tokens there are at or above each of three cutoffs (not below floor), and their masses."""
    low_count = tl.zeros([CHUNK], tl.int32)
    middle_count = tl.zeros([CHUNK], tl.int32)
    high_count = tl.zeros([CHUNK], tl.int32)
    low_mass = tl.zeros([CHUNK], tl.float32)
    middle_mass = tl.zeros([CHUNK], tl.float32)
    high_mass = tl.zeros([CHUNK], tl.float32)
    for chunk in range(CHUNKS):
        chunk_max = tl.load(maxima + row * CHUNKS + chunk)
        if order_of(tl.div_rn(chunk_max - row_max, row_temperature)) >= floor:
            column = chunk * CHUNK + tl.arange(0, CHUNK)
            x = load_logits(
                logits, row, column, logits_stride, counts, repetition, presence, frequency, VOCABULARY
            )
            y = tl.div_rn(x - row_max, row_temperature)
            mass = tl.exp(y)
            rank = order_of(y)
            kept = (rank >= low) & (column < VOCABULARY)
            low_count += kept.to(tl.int32)
            low_mass += tl.where(kept, mass, 0.0)
            kept = (rank >= middle) & (column < VOCABULARY)
            middle_count += kept.to(tl.int32)
            middle_mass += tl.where(kept, mass, 0.0)
            kept = (rank >= high) & (column < VOCABULARY)
            high_count += kept.to(tl.int32)
            high_mass += tl.where(kept, mass, 0.0)
    return (
        tl.sum(low_count, 0),
        tl.sum(middle_count, 0),
        tl.sum(high_count, 0),
        tl.sum(low_mass, 0),
        tl.sum(middle_mass, 0),
        tl.sum(high_mass, 0),
    )


@triton.jit
def _search(
    least,
    wanted_count,
    wanted_mass,
    row_max,
    row_temperature,
    logits,
    row,
    logits_stride,
    counts,
    repetition,
    presence,
    frequency,
    maxima,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """The largest cutoff, as an order, that keeps ``wanted_count`` tokens and ``wanted_mass``; ``least`` if
    none does from there on."""
    low = least
    # The maximum has order 0.
    high = low * 0 + 1
    low_count = low * 0 + VOCABULARY
    high_count = low * 0
    while (high - low > 1) & (low_count - high_count > 1):
        quarter = (high - low) // 4
        a = low + tl.maximum(quarter, 1)
        b = tl.minimum(low + tl.maximum(2 * quarter, 1), high - 1)
        c = tl.maximum(high - tl.maximum(quarter, 1), b)
        a_count, b_count, c_count, a_mass, b_mass, c_mass = _totals(
            a, b, c, low, row_max, row_temperature, logits, row, logits_stride, counts, repetition,
            presence, frequency, maxima, VOCABULARY, CHUNK, CHUNKS,
        )  # fmt: skip
        a_kept = (a_count >= wanted_count) & (a_mass >= wanted_mass)
        b_kept = (b_count >= wanted_count) & (b_mass >= wanted_mass)
        c_kept = (c_count >= wanted_count) & (c_mass >= wanted_mass)
        if c_kept:
            low, low_count = c, c_count
        elif b_kept:
            low, low_count, high, high_count = b, b_count, c, c_count
        elif a_kept:
            low, low_count, high, high_count = a, a_count, b, b_count
        else:
            high, high_count = a, a_count
    return low


@triton.jit
def filter_kernel(
    logits,
    counts,
    repetition,
    presence,
    frequency,
    temperature,
    top_k,
    top_p,
    min_p,
    maxima,
    cutoffs,
    logits_stride,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    PADDED_CHUNKS: tl.constexpr,
):
    """Program (row,): the order of the smallest scaled logit that the row's filters keep, into cutoffs
    [rows]."""
    row = tl.program_id(0).to(tl.int64)
    row_temperature = tl.load(temperature + row)
    if row_temperature <= 0:
        return
    k = tl.load(top_k + row)
    p = tl.load(top_p + row)
    min_p_value = tl.load(min_p + row)
    row_max = load_row_max(maxima, row, CHUNKS, PADDED_CHUNKS)
    # Further below the maximum than noise reaches, no filter makes a difference.
    cutoff = order_of(tl.full([], 0.0, tl.float32) - REACH)
    if min_p_value > 0:
        cutoff = tl.maximum(cutoff, order_of(tl.log(min_p_value)))
    limited = (k > 0) & (k < VOCABULARY)
    if limited:
        cutoff = _search(
            cutoff, k, 0.0, row_max, row_temperature, logits, row, logits_stride, counts, repetition,
            presence, frequency, maxima, VOCABULARY, CHUNK, CHUNKS,
        )  # fmt: skip
    if p < 1:
        # The nucleus is a share of the mass that min_p and top_k left, which without them is the whole row.
        floor = tl.where(limited | (min_p_value > 0), cutoff, -0x7FFFFFFF)
        _, _, _, mass, _, _ = _totals(
            floor, floor, floor, floor, row_max, row_temperature, logits, row, logits_stride, counts,
            repetition, presence, frequency, maxima, VOCABULARY, CHUNK, CHUNKS,
        )  # fmt: skip
        cutoff = _search(
            cutoff, 1, p * mass, row_max, row_temperature, logits, row, logits_stride, counts, repetition,
            presence, frequency, maxima, VOCABULARY, CHUNK, CHUNKS,
        )  # fmt: skip
    tl.store(cutoffs + row, cutoff)
