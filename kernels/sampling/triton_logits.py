"""Logits in Triton: penalties, and argmax and log-sum-exp by chunks of a row, merged by a second kernel."""

# Kernels are written in Triton's language, which type checkers take for Python: no parameter has a Python
# type, and operators, ranges and constants mean something else.
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl

PROMPT_BIT = tl.constexpr(1 << 30)
"""Set in a token's count when the prompt has it; the bits below count the output's."""


@triton.jit(do_not_specialize=["length", "history_stride"])
def count_kernel(
    history,
    counts,
    length,
    history_stride,
    VOCABULARY: tl.constexpr,
    PROMPT: tl.constexpr,
    PIECE: tl.constexpr,
):
    """Program (row, piece of its history): count its tokens into counts [rows, VOCABULARY]."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * PIECE + tl.arange(0, PIECE)
    token = tl.load(history + row * history_stride + at, mask=at < length, other=-1)
    place = counts + row * VOCABULARY + token
    if PROMPT:
        tl.atomic_or(place, PROMPT_BIT, mask=token >= 0, sem="relaxed")
    else:
        tl.atomic_add(place, 1, mask=token >= 0, sem="relaxed")


@triton.jit
def load_logits(
    logits, row, column, logits_stride, counts, repetition, presence, frequency, VOCABULARY: tl.constexpr
):
    """Penalized float32 logits of one row; -inf past the end."""
    mask = column < VOCABULARY
    x = tl.load(logits + row * logits_stride + column, mask=mask, other=float("-inf")).to(tl.float32)
    if counts is not None:
        marks = tl.load(counts + row * VOCABULARY + column, mask=mask, other=0)
        repeat = tl.load(repetition + row)
        number = marks & (PROMPT_BIT - 1)
        fixed = tl.where(x > 0, tl.div_rn(x, repeat), x * repeat)
        fixed -= tl.load(frequency + row) * number + tl.where(number > 0, tl.load(presence + row), 0.0)
        x = tl.where(marks > 0, fixed, x)
    return x


@triton.jit
def scan_kernel(
    logits,
    counts,
    repetition,
    presence,
    frequency,
    maxima,
    argmaxima,
    raw_maxima,
    raw_sums,
    logits_stride,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """Program (row, chunk): the chunk's maximum and argmax; for log-probabilities, the maximum without
    penalties and the sum of exponentials relative to it. All outputs [rows, CHUNKS]."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    place = row * CHUNKS + chunk
    x = load_logits(logits, row, column, logits_stride, counts, repetition, presence, frequency, VOCABULARY)
    maximum = tl.max(x, 0)
    tl.store(maxima + place, maximum)
    tl.store(argmaxima + place, tl.min(tl.where(x == maximum, column, VOCABULARY), 0))
    if raw_maxima is not None:
        if counts is not None:
            x = load_logits(logits, row, column, logits_stride, None, None, None, None, VOCABULARY)
            maximum = tl.max(x, 0)
        tl.store(raw_maxima + place, maximum)
        base = tl.where(maximum > float("-inf"), maximum, 0.0)
        tl.store(raw_sums + place, tl.sum(tl.exp(x - base), 0))


@triton.jit
def choose_kernel(
    logits,
    temperature,
    maxima,
    argmaxima,
    drawn_maxima,
    drawn_argmaxima,
    raw_maxima,
    raw_sums,
    tokens,
    logprobs,
    normalizers,
    logits_stride,
    VOCABULARY: tl.constexpr,
    CHUNKS: tl.constexpr,
    PADDED_CHUNKS: tl.constexpr,
):
    """Program (row,): the row's token, argmax over its chunks, drawn or greedy, and its log-probability."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, PADDED_CHUNKS)
    mask = chunk < CHUNKS
    place = row * CHUNKS + chunk
    chunk_max = tl.load(maxima + place, mask=mask, other=float("-inf"))
    column = tl.load(argmaxima + place, mask=mask, other=VOCABULARY)
    if temperature is not None:
        row_max = tl.max(chunk_max, 0)
        # Where the maximum is infinite or NaN there is no distribution to draw from.
        if (tl.load(temperature + row) > 0) & (tl.abs(row_max) < float("inf")):
            chunk_max = tl.load(drawn_maxima + place, mask=mask, other=float("-inf"))
            column = tl.load(drawn_argmaxima + place, mask=mask, other=VOCABULARY)
    token = tl.min(tl.where(chunk_max == tl.max(chunk_max, 0), column, VOCABULARY), 0)
    token = tl.minimum(token, VOCABULARY - 1)
    tl.store(tokens + row, token.to(tl.int64))
    if logprobs is not None:
        raw_max = tl.load(raw_maxima + place, mask=mask, other=float("-inf"))
        row_max = tl.max(raw_max, 0)
        sums = tl.load(raw_sums + place, mask=mask, other=0.0)
        normalizer = row_max + tl.log(tl.sum(sums * tl.exp(raw_max - row_max), 0))
        tl.store(normalizers + row, normalizer)
        own = tl.load(logits + row * logits_stride + token).to(tl.float32)
        tl.store(logprobs + row, own - normalizer)
