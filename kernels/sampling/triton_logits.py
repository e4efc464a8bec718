"""One pass over the logits: what of a row fits one program, and what it takes to put the pieces together."""

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
    """Program (row, piece of its history): mark the tokens in counts [rows, VOCABULARY], zero at first."""
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
    """One row's logits, float32, with its penalties; -inf past the end."""
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
    tops,
    top_columns,
    raw_tops,
    raw_sums,
    logits_stride,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """Program (row, chunk): the chunk's largest logit and the first column that has it; for
    log-probabilities, the largest unpenalized logit and the sum of exponentials over it. All outputs [rows,
    CHUNKS]."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    place = row * CHUNKS + chunk
    x = load_logits(logits, row, column, logits_stride, counts, repetition, presence, frequency, VOCABULARY)
    top = tl.max(x, 0)
    tl.store(tops + place, top)
    tl.store(top_columns + place, tl.min(tl.where(x == top, column, VOCABULARY), 0))
    if raw_tops is not None:
        if counts is not None:
            x = load_logits(logits, row, column, logits_stride, None, None, None, None, VOCABULARY)
            top = tl.max(x, 0)
        tl.store(raw_tops + place, top)
        base = tl.where(top > float("-inf"), top, 0.0)
        tl.store(raw_sums + place, tl.sum(tl.exp(x - base), 0))


@triton.jit
def choose_kernel(
    logits,
    temperature,
    tops,
    top_columns,
    drawn_tops,
    drawn_columns,
    raw_tops,
    raw_sums,
    tokens,
    logprobs,
    normalizers,
    logits_stride,
    VOCABULARY: tl.constexpr,
    CHUNKS: tl.constexpr,
    PADDED_CHUNKS: tl.constexpr,
):
    """Program (row,): the row's token from the best of its chunks, drawn or not, and its log-probability."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, PADDED_CHUNKS)
    mask = chunk < CHUNKS
    place = row * CHUNKS + chunk
    top = tl.load(tops + place, mask=mask, other=float("-inf"))
    column = tl.load(top_columns + place, mask=mask, other=VOCABULARY)
    if temperature is not None:
        best = tl.max(top, 0)
        # Where the best logit is infinite or NaN there is no distribution to draw from.
        if (tl.load(temperature + row) > 0) & (tl.abs(best) < float("inf")):
            top = tl.load(drawn_tops + place, mask=mask, other=float("-inf"))
            column = tl.load(drawn_columns + place, mask=mask, other=VOCABULARY)
    token = tl.min(tl.where(top == tl.max(top, 0), column, VOCABULARY), 0)
    token = tl.minimum(token, VOCABULARY - 1)
    tl.store(tokens + row, token.to(tl.int64))
    if logprobs is not None:
        raw_top = tl.load(raw_tops + place, mask=mask, other=float("-inf"))
        best = tl.max(raw_top, 0)
        sums = tl.load(raw_sums + place, mask=mask, other=0.0)
        normalizer = best + tl.log(tl.sum(sums * tl.exp(raw_top - best), 0))
        tl.store(normalizers + row, normalizer)
        own = tl.load(logits + row * logits_stride + token).to(tl.float32)
        tl.store(logprobs + row, own - normalizer)
