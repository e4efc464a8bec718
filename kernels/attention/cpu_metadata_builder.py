"""Attention metadata builder of the CPU path: once a forward pass for all layers of one shape."""

import warnings
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from .batch import AttentionBatch
from .cpu_metadata import CpuAttentionMetadata, DecodeMetadata, LayerShape, PrefillMetadata

GATHERED_ELEMENTS: Final = 1 << 22
"""Elements of the keys of a group of decoding sequences, at most: 16 MB of float32, about a CPU's caches."""
MAX_PADDING: Final = 0.25
"""Share of padding among the keys of a group's shortest sequence, at most."""

with warnings.catch_warnings():
    # torch warns, once a process, that sparse CSR tensors are in beta: at the first, which is this one.
    warnings.simplefilter("ignore")
    _none = torch.zeros(0, dtype=torch.int64, device="cpu")
    torch.sparse_csr_tensor(_none.new_zeros(2), _none, _none.float(), (1, 1), check_invariants=False)


def metadata_of(batch: AttentionBatch, shape: LayerShape) -> CpuAttentionMetadata:
    """The batch's metadata for layers of ``shape``, built by the first of them."""
    if batch.cpu_metadata is None:
        return _build(batch, shape)
    if shape not in batch.cpu_metadata:
        batch.cpu_metadata[shape] = _build(batch, shape)
    return batch.cpu_metadata[shape]


def _build(batch: AttentionBatch, shape: LayerShape) -> CpuAttentionMetadata:
    starts: list[int] = batch.query_start.tolist()
    lengths: list[int] = batch.lengths.tolist()
    metadata = CpuAttentionMetadata()
    spans: dict[int, tuple[int, int]] = {}
    for sequence, length in enumerate(lengths):
        rows = slice(starts[sequence], starts[sequence + 1])
        queries = rows.stop - rows.start
        first_key = max(0, length - queries - shape.window + 1)
        if not length:
            metadata.padding.append(rows)
        elif queries == 1:
            spans[sequence] = (first_key, length)
        elif queries:
            slots, _ = _slots(batch.block_table[sequence][None], [(first_key, length)], shape)
            metadata.prefills.append(PrefillMetadata(rows, slots, length, first_key))
    for group in _groups(spans, shape):
        metadata.decodes.append(_decode_metadata(batch, group, [starts[s] for s in group], spans, shape))
    return metadata


def _decode_metadata(
    batch: AttentionBatch,
    group: list[int],
    rows: list[int],
    spans: dict[int, tuple[int, int]],
    shape: LayerShape,
) -> DecodeMetadata:
    device = batch.lengths.device
    tables = batch.block_table.index_select(0, torch.tensor(group, device=device))
    slots, padding = _slots(tables, [spans[sequence] for sequence in group], shape)
    n, width = padding.shape
    queries = n * shape.heads
    if shape.in_place:
        key_rows, columns = shape.num_blocks * shape.kv_heads * shape.block_size, slots
    else:
        key_rows = slots.numel()
        columns = torch.arange(key_rows, device=device).view(slots.shape)
    shared = shape.heads // shape.kv_heads
    columns = columns.int()[:, :, None].expand(n, shape.kv_heads, shared, width).reshape(-1)
    bias = torch.zeros(padding.shape, dtype=shape.dtype, device=device).masked_fill_(padding, -torch.inf)
    bias = bias[:, None].expand(n, shape.heads, width).reshape(-1)
    ends = torch.arange(queries + 1, dtype=torch.int32, device=device) * width
    return DecodeMetadata(
        rows=torch.tensor(rows, device=device),
        slots=slots,
        padding=padding,
        columns=columns,
        offsets=ends[:-1],
        pattern=torch.sparse_csr_tensor(ends, columns, bias, (queries, key_rows), check_invariants=False),
    )


def _slots(tables: Tensor, spans: list[tuple[int, int]], shape: LayerShape) -> tuple[Tensor, Tensor]:
    """Rows of the cache, int64 [n, kv_heads, width], of each sequence's span of positions, and which of them
    are padding, bool [n, width]; block tables [n, max_blocks]."""
    device = tables.device
    begin, end = torch.tensor(spans, device=device).unbind(1)
    width = max(stop - start for start, stop in spans)
    position = begin[:, None] + torch.arange(width, device=device)
    padding = position >= end[:, None]
    position = position.minimum(end[:, None] - 1)
    block = tables.gather(1, position // shape.block_size).long() * shape.kv_heads
    head = torch.arange(shape.kv_heads, device=device)
    place = (position % shape.block_size)[:, None]
    return (block[:, None] + head[:, None]) * shape.block_size + place, padding


def _groups(spans: dict[int, tuple[int, int]], shape: LayerShape) -> Iterator[list[int]]:
    """Split sequences into groups worth padding to the same length; spans are of the keys that are seen."""
    widths = {sequence: end - begin for sequence, (begin, end) in spans.items()}
    group: list[int] = []
    longest = 0
    for sequence in sorted(spans, key=lambda s: widths[s], reverse=True):
        elements = longest * shape.kv_heads * shape.head_dim * (len(group) + 1)
        if group and (elements > GATHERED_ELEMENTS or widths[sequence] < longest * (1 - MAX_PADDING)):
            yield group
            group = []
        if not group:
            longest = widths[sequence]
        group.append(sequence)
    if group:
        yield group
