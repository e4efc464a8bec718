"""Gumbel-max in Triton: noise on the tokens that the filters kept, and each chunk's argmax."""

# Kernels are written in Triton's language, which type checkers take for Python: no parameter has a Python
# type, and operators, ranges and constants mean something else.
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl

from .noise import LARGEST_UNIFORM
from .triton_filters import REACH, load_row_max, order_of
from .triton_logits import load_logits

MAX_UNIFORM = tl.constexpr(LARGEST_UNIFORM)


@triton.jit
def random_words(seed, position, first_quarter, QUARTERS: tl.constexpr):
    """32 random bits (uint32) for each of 4 * QUARTERS neighbouring tokens; see ``noise.token_words``."""
    quarter = (first_quarter + tl.arange(0, QUARTERS)).to(tl.uint32)
    zero = tl.zeros([QUARTERS], tl.uint32)
    low = zero + (position & 0xFFFFFFFF).to(tl.uint32)
    high = zero + ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    a, b, c, d = tl.philox(seed, low, high, quarter, zero)
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [4 * QUARTERS])


@triton.jit
def gumbel(words):
    """See ``noise.gumbel``. Triton has no log1p: a series takes its place where a logarithm would lose
    digits."""
    u = tl.minimum((words.to(tl.float32) + 0.5) * 2.3283064365386963e-10, MAX_UNIFORM)
    series = u * (1.0 + u * (0.5 + u * (0.3333333333333333 + u * 0.25)))
    return -tl.log(tl.where(u < 0.015625, series, -tl.log(1.0 - u)))


@triton.jit
def draw_kernel(
    logits,
    counts,
    repetition,
    presence,
    frequency,
    temperature,
    seed,
    position,
    cutoffs,
    maxima,
    drawn_maxima,
    drawn_argmaxima,
    logits_stride,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    PADDED_CHUNKS: tl.constexpr,
):
    """Program (row, chunk): maximum and argmax (the first of equals) of scaled logit plus noise."""
    row = tl.program_id(0).to(tl.int64)
    row_temperature = tl.load(temperature + row)
    if row_temperature <= 0:
        return
    chunk = tl.program_id(1)
    place = row * CHUNKS + chunk
    row_max = load_row_max(maxima, row, CHUNKS, PADDED_CHUNKS)
    cutoff = order_of(tl.full([], 0.0, tl.float32) - REACH)
    if cutoffs is not None:
        cutoff = tl.maximum(cutoff, tl.load(cutoffs + row))
    if order_of(tl.div_rn(tl.load(maxima + place) - row_max, row_temperature)) < cutoff:
        tl.store(drawn_maxima + place, float("-inf"))
        tl.store(drawn_argmaxima + place, VOCABULARY)
        return
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    x = load_logits(logits, row, column, logits_stride, counts, repetition, presence, frequency, VOCABULARY)
    y = tl.div_rn(x - row_max, row_temperature)
    words = random_words(tl.load(seed + row), tl.load(position + row), chunk * (CHUNK // 4), CHUNK // 4)
    noisy = tl.where(order_of(y) >= cutoff, y + gumbel(words), float("-inf"))
    maximum = tl.max(noisy, 0)
    tl.store(drawn_maxima + place, maximum)
    tl.store(drawn_argmaxima + place, tl.min(tl.where(noisy == maximum, column, VOCABULARY), 0))
