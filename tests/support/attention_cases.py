"""Random paged batches of attention, and the error of a result."""

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.kernels import AttentionBatch


@dataclass(slots=True)
class Case:
    """A batch over a cache whose unused positions are NaN."""

    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    batch: AttentionBatch
    keys: list[Tensor]
    """Each sequence's own keys [length, kv_heads, head_dim], as stored."""
    values: list[Tensor]


def make_case(
    sequences: list[tuple[int, int]],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    sliding_window: int | None = None,
) -> Case:
    """Sequences are (queries, length); blocks are dealt out in random order, leaving some unused.

    Positions that no query sees with the window are unused, too, and blocks of only such positions are gone
    from the table.
    """
    cache_dtype = cache_dtype or dtype
    needed = [-(-length // block_size) for _, length in sequences]
    spare = torch.randperm(sum(needed) + 3).tolist()
    shape = (sum(needed) + 3, kv_heads, block_size, head_dim)
    caches = [torch.full(shape, float("nan")).to(cache_dtype) for _ in range(2)]
    table = torch.full((len(sequences), max(needed, default=0) + 2), 1 << 30, dtype=torch.int32)
    stored: tuple[list[Tensor], list[Tensor]] = ([], [])
    for index, (queries, length) in enumerate(sequences):
        oldest = max(0, length - queries - sliding_window + 1) if sliding_window else 0
        blocks = [spare.pop() for _ in range(needed[index])]
        table[index, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        for cache, own in zip(caches, stored, strict=True):
            rows = torch.randn(length, kv_heads, head_dim).to(cache_dtype)
            own.append(rows)
            for position in range(oldest, length):
                # float8 can be assigned row by row, but not indexed.
                cache[blocks[position // block_size], :, position % block_size] = rows[position]
        table[index, : oldest // block_size] = 1 << 30
    counts = torch.tensor([0] + [queries for queries, _ in sequences])
    batch = AttentionBatch(
        query_start=counts.cumsum(0).int(),
        lengths=torch.tensor([length for _, length in sequences], dtype=torch.int32),
        block_table=table,
        max_query=max(queries for queries, _ in sequences),
        max_length=max(length for _, length in sequences),
    )
    query = torch.randn(int(counts.sum()), heads, head_dim).to(dtype)
    return Case(query, caches[0], caches[1], batch, stored[0], stored[1])


def relative_error(result: Tensor, expected: Tensor) -> float:
    """Largest difference over largest expected magnitude; infinite for anything that is not a number."""
    if not result.isfinite().all():
        return float("inf")
    return ((result.double() - expected.double()).abs().max() / expected.double().abs().max()).item()
