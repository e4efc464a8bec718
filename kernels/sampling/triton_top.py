"""Top-n tokens of each row in Triton: of each chunk, then of the chunks, by n times argmax."""

# Kernels are written in Triton's language, which type checkers take for Python: no parameter has a Python
# type, and operators, ranges and constants mean something else.
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl


@triton.jit
def chunk_top_kernel(
    logits,
    values,
    columns,
    logits_stride,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    NUMBER: tl.constexpr,
):
    """Program (row, chunk): values and columns [rows, CHUNKS, NUMBER] of its largest, equal ones by
    column."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    left = tl.where(column < VOCABULARY, column, VOCABULARY)
    x = tl.load(logits + row * logits_stride + column, mask=column < VOCABULARY, other=float("-inf")).to(
        tl.float32
    )
    place = (row * CHUNKS + chunk) * NUMBER
    for index in range(NUMBER):
        maximum = tl.max(x, 0)
        first = tl.min(tl.where(x == maximum, left, VOCABULARY), 0)
        tl.store(values + place + index, maximum)
        tl.store(columns + place + index, first)
        x = tl.where(column == first, float("-inf"), x)
        left = tl.where(column == first, VOCABULARY, left)


@triton.jit
def merge_top_kernel(
    values,
    columns,
    normalizers,
    top_tokens,
    top_logprobs,
    VOCABULARY: tl.constexpr,
    CANDIDATES: tl.constexpr,
    PADDED_CANDIDATES: tl.constexpr,
    NUMBER: tl.constexpr,
):
    """Program (row,): the NUMBER largest of its CANDIDATES, into top_tokens and top_logprobs [rows,
    NUMBER]."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, PADDED_CANDIDATES)
    x = tl.load(values + row * CANDIDATES + at, mask=at < CANDIDATES, other=float("-inf"))
    left = tl.load(columns + row * CANDIDATES + at, mask=at < CANDIDATES, other=VOCABULARY)
    normalizer = tl.load(normalizers + row)
    for index in range(NUMBER):
        maximum = tl.max(x, 0)
        first = tl.min(tl.where(x == maximum, left, VOCABULARY), 0)
        tl.store(top_tokens + row * NUMBER + index, tl.minimum(first, VOCABULARY - 1).to(tl.int64))
        tl.store(top_logprobs + row * NUMBER + index, maximum - normalizer)
        x = tl.where(left == first, float("-inf"), x)
        left = tl.where(left == first, VOCABULARY, left)
