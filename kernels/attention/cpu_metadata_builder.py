"""What a batch means for attention in torch, worked out once for all layers that see the same of it."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from .batch import AttentionBatch

GATHERED_ELEMENTS: Final = 1 << 22
"""Of the keys that a group of decoding sequences sees: 16 MB of float32, about what caches hold."""
LONGEST_PADDING: Final = 0.25
"""How much of what is seen for a group's shortest member may be padding."""

with warnings.catch_warnings():
    # With its first such tensor torch warns, once a process, that they are not everything yet.
    warnings.simplefilter("ignore")
    _none = torch.zeros(0, dtype=torch.int64, device="cpu")
    torch.sparse_csr_tensor(_none.new_zeros(2), _none, _none.float(), (1, 1), check_invariants=False)


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a layer decides about its part of the work."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    blocks: int
    """In the caches."""
    window: int
    """How many keys a query sees at most, its own among them."""
    dtype: torch.dtype
    """That is computed in."""
    in_place: bool
    """The caches are of that dtype."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A sequence with several queries."""

    rows: slice
    slots: Tensor
    """int64 [1, kv_heads, width]: rows of the cache with the keys that its queries see, in order."""
    length: int
    """Tokens that the sequence has."""
    origin: int
    """The position of the first of those keys."""


@dataclass(frozen=True, slots=True)
class Decodes:
    """n sequences with one query each that are answered together."""

    rows: Tensor
    """int64 [n]: their queries."""
    slots: Tensor
    """int64 [n, kv_heads, width]: rows of the cache with the keys that each sees; the shorter ones are padded
    with their last."""
    hidden: Tensor
    """bool [n, width]: what is padding."""
    columns: Tensor
    """int32 [n * heads * width]: for each query head, where those keys are among the rows it is given: the
    cache's, or only those in ``slots``."""
    offsets: Tensor
    """int32 [n * heads]: where each query head's begin."""
    seen: Tensor
    """Sparse CSR [n * heads, those rows]: 0 where a query head sees a key, -inf in padding."""


@dataclass(slots=True)
class Work:
    """What a batch is to layers of a shape."""

    padding: list[slice] = field(default_factory=list[slice])
    prompts: list[Prompt] = field(default_factory=list[Prompt])
    decodes: list[Decodes] = field(default_factory=list[Decodes])


def work_of(batch: AttentionBatch, shape: Shape) -> Work:
    """From the batch, or as it was for an earlier layer."""
    if batch.worked_out is None:
        return _worked_out(batch, shape)
    if shape not in batch.worked_out:
        batch.worked_out[shape] = _worked_out(batch, shape)
    return batch.worked_out[shape]


def _worked_out(batch: AttentionBatch, shape: Shape) -> Work:
    starts: list[int] = batch.query_start.tolist()
    lengths: list[int] = batch.lengths.tolist()
    work = Work()
    spans: dict[int, tuple[int, int]] = {}
    for sequence, length in enumerate(lengths):
        rows = slice(starts[sequence], starts[sequence + 1])
        queries = rows.stop - rows.start
        origin = max(0, length - queries - shape.window + 1)
        if not length:
            work.padding.append(rows)
        elif queries == 1:
            spans[sequence] = (origin, length)
        elif queries:
            slots, _ = _slots(batch.block_table[sequence][None], [(origin, length)], shape)
            work.prompts.append(Prompt(rows, slots, length, origin))
    for group in _groups(spans, shape):
        work.decodes.append(_decodes(batch, group, [starts[s] for s in group], spans, shape))
    return work


def _decodes(
    batch: AttentionBatch, group: list[int], rows: list[int], spans: dict[int, tuple[int, int]], shape: Shape
) -> Decodes:
    device = batch.lengths.device
    tables = batch.block_table.index_select(0, torch.tensor(group, device=device))
    slots, hidden = _slots(tables, [spans[sequence] for sequence in group], shape)
    n, width = hidden.shape
    queries = n * shape.heads
    if shape.in_place:
        given, columns = shape.blocks * shape.kv_heads * shape.block_size, slots
    else:
        given = slots.numel()
        columns = torch.arange(given, device=device).view(slots.shape)
    shared = shape.heads // shape.kv_heads
    columns = columns.int()[:, :, None].expand(n, shape.kv_heads, shared, width).reshape(-1)
    bias = torch.zeros(hidden.shape, dtype=shape.dtype, device=device).masked_fill_(hidden, -torch.inf)
    bias = bias[:, None].expand(n, shape.heads, width).reshape(-1)
    ends = torch.arange(queries + 1, dtype=torch.int32, device=device) * width
    return Decodes(
        rows=torch.tensor(rows, device=device),
        slots=slots,
        hidden=hidden,
        columns=columns,
        offsets=ends[:-1],
        seen=torch.sparse_csr_tensor(ends, columns, bias, (queries, given), check_invariants=False),
    )


def _slots(tables: Tensor, spans: list[tuple[int, int]], shape: Shape) -> tuple[Tensor, Tensor]:
    """Of sequences with block tables [n, ...] the rows of the cache for each one's span of positions, int64
    [n, kv_heads, width], and what of that is padding, bool [n, width]."""
    device = tables.device
    begin, end = torch.tensor(spans, device=device).unbind(1)
    width = max(stop - start for start, stop in spans)
    position = begin[:, None] + torch.arange(width, device=device)
    hidden = position >= end[:, None]
    position = position.minimum(end[:, None] - 1)
    block = tables.gather(1, position // shape.block_size).long() * shape.kv_heads
    head = torch.arange(shape.kv_heads, device=device)
    place = (position % shape.block_size)[:, None]
    return (block[:, None] + head[:, None]) * shape.block_size + place, hidden


def _groups(spans: dict[int, tuple[int, int]], shape: Shape) -> Iterator[list[int]]:
    """Split sequences, of whose keys the span is seen, into groups worth padding to the same length."""
    widths = {sequence: end - begin for sequence, (begin, end) in spans.items()}
    group: list[int] = []
    longest = 0
    for sequence in sorted(spans, key=lambda s: widths[s], reverse=True):
        elements = longest * shape.kv_heads * shape.head_dim * (len(group) + 1)
        if group and (elements > GATHERED_ELEMENTS or widths[sequence] < longest * (1 - LONGEST_PADDING)):
            yield group
            group = []
        if not group:
            longest = widths[sequence]
        group.append(sequence)
    if group:
        yield group
