"""Paged attention in torch: the reference, and what serves on the CPU.

Sequences with one query are answered together, in groups of similar length gathered into one padded batch; a
sequence with more is answered alone, a slice of its queries at a time. Query heads that share a KV head are
rows of one matrix product, so keys and values are never repeated.
"""

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from .batch import AttentionBatch

# Elements of the largest intermediate (float32: 16 MB of gathered keys, 8 MB of scores): about what caches
# hold.
GATHERED_ELEMENTS: Final = 1 << 22
SCORE_ELEMENTS: Final = 1 << 21

LONGEST_PADDING: Final = 0.25
"""How much of a group's gathered keys may be padding for its shortest member."""


def attend(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: AttentionBatch,
    out: Tensor,
    *,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
    key_scale: Tensor | None,
    value_scale: Tensor | None,
) -> None:
    """See ``paged_attention``."""
    kv_heads, block_size, head_dim = key_cache.shape[1:]
    attention = _Attention(
        key_cache,
        value_cache,
        scale,
        softcap,
        None if sinks is None else sinks.view(kv_heads, -1, 1),
        key_scale,
        value_scale,
        torch.float64 if query.dtype == torch.float64 else torch.float32,
    )
    starts: list[int] = batch.query_start.tolist()
    lengths: list[int] = batch.lengths.tolist()
    window = sliding_window or max(lengths, default=0)

    decodes: list[int] = []
    for sequence, length in enumerate(lengths):
        rows = slice(starts[sequence], starts[sequence + 1])
        queries = rows.stop - rows.start
        if not length:
            out[rows] = 0
        elif queries == 1:
            decodes.append(sequence)
        elif queries:
            table = batch.block_table[sequence]
            out[rows] = attention.prefill(query[rows], table, length, window)

    spans = {s: (max(0, lengths[s] - window), lengths[s]) for s in decodes}
    for group in _groups(spans, kv_heads * head_dim, block_size):
        members = torch.tensor(group, device=query.device)
        rows = torch.tensor([starts[s] for s in group], device=query.device)
        tables = batch.block_table.index_select(0, members)
        out[rows] = attention.decode(query[rows], tables, [spans[s] for s in group])


def _groups(spans: dict[int, tuple[int, int]], width: int, block_size: int) -> Iterator[list[int]]:
    """Split sequences, of whose keys the span is seen, into groups that are worth padding to the same length.

    ``width`` is the number of elements of one position's keys.
    """
    blocks = {s: -(-end // block_size) - begin // block_size for s, (begin, end) in spans.items()}
    group: list[int] = []
    longest = 0
    for sequence in sorted(spans, key=lambda s: blocks[s], reverse=True):
        full = longest * block_size * width * (len(group) + 1) > GATHERED_ELEMENTS
        if group and (full or blocks[sequence] < longest * (1 - LONGEST_PADDING)):
            yield group
            group = []
        if not group:
            longest = blocks[sequence]
        group.append(sequence)
    if group:
        yield group


class _Attention:
    """One call's caches and score arithmetic."""

    def __init__(
        self,
        key_cache: Tensor,
        value_cache: Tensor,
        scale: float,
        softcap: float | None,
        sinks: Tensor | None,
        key_scale: Tensor | None,
        value_scale: Tensor | None,
        dtype: torch.dtype,
    ) -> None:
        self.key_cache = key_cache
        self.value_cache = value_cache
        self.kv_heads, self.block_size, self.head_dim = key_cache.shape[1:]
        self.scale = scale
        self.softcap = softcap
        self.sinks = sinks
        self.key_scale = key_scale
        self.value_scale = value_scale
        self.dtype = dtype

    def decode(self, query: Tensor, tables: Tensor, spans: list[tuple[int, int]]) -> Tensor:
        """query [n, heads, head_dim], one per sequence, over the keys of each sequence's span; like query."""
        n, heads, _ = query.shape
        device = query.device
        first = [begin // self.block_size for begin, _ in spans]
        width = max(-(-end // self.block_size) - f for f, (_, end) in zip(first, spans, strict=True))
        begin = torch.tensor(
            [b - f * self.block_size for f, (b, _) in zip(first, spans, strict=True)], device=device
        )
        end = torch.tensor(
            [e - f * self.block_size for f, (_, e) in zip(first, spans, strict=True)], device=device
        )
        # Shorter sequences are padded with blocks of their own, which are zeroed and masked below.
        column = torch.arange(width, device=device).minimum(((end - 1) // self.block_size)[:, None])
        blocks = tables.gather(1, column + torch.tensor(first, device=device)[:, None])

        keys = self._gather(self.key_cache, blocks, begin, end, self.key_scale)
        values = self._gather(self.value_cache, blocks, begin, end, self.value_scale)
        position = torch.arange(width * self.block_size, device=device)
        hidden = (position < begin[:, None]) | (position >= end[:, None])
        rows = query.to(self.dtype).view(n, self.kv_heads, heads // self.kv_heads, self.head_dim)
        weights = self._weights(rows, keys, hidden[:, None, None])
        return (weights @ values).view(query.shape).to(query.dtype)

    def prefill(self, query: Tensor, table: Tensor, length: int, window: int) -> Tensor:
        """query [n, heads, head_dim] of one sequence, its last n tokens; like query."""
        n, heads, _ = query.shape
        group = heads // self.kv_heads
        device = query.device
        lowest = max(0, length - n - window + 1)
        first = lowest // self.block_size
        blocks = table[first : -(-length // self.block_size)][None].long()
        origin = first * self.block_size
        begin = torch.tensor([lowest - origin], device=device)
        end = torch.tensor([length - origin], device=device)
        keys = self._gather(self.key_cache, blocks, begin, end, self.key_scale)[0]
        values = self._gather(self.value_cache, blocks, begin, end, self.value_scale)[0]
        # Query heads of one KV head lie beside each other: [kv_heads, group, n, head_dim].
        rows = query.to(self.dtype).view(n, self.kv_heads, group, self.head_dim).permute(1, 2, 0, 3)

        result = torch.empty_like(query)
        step = max(16, SCORE_ELEMENTS // (heads * min(length, window + n)))
        for start in range(0, n, step):
            stop = min(n, start + step)
            low = max(0, length - n + start - window + 1) - origin
            high = length - n + stop - origin
            at = torch.arange(length - n + start, length - n + stop, device=device)[:, None] - origin
            position = torch.arange(low, high, device=device)
            hidden = (position > at) | (position <= at - window)
            weights = self._weights(rows[:, :, start:stop], keys[:, low:high], hidden)
            answer = weights.flatten(1, 2) @ values[:, low:high]
            answer = answer.view(self.kv_heads, group, stop - start, self.head_dim)
            result[start:stop] = answer.permute(2, 0, 1, 3).reshape(stop - start, heads, self.head_dim)
        return result

    def _gather(
        self, cache: Tensor, blocks: Tensor, begin: Tensor, end: Tensor, scale: Tensor | None
    ) -> Tensor:
        """The positions of blocks [n, b] as [n, kv_heads, b * block_size, head_dim], zero outside [begin,
        end).

        The zeros matter: a weight of zero does not hide a NaN that an unused position may hold.
        """
        n, width = blocks.shape
        # torch cannot index float8.
        stored = cache.view(torch.uint8) if cache.dtype == torch.float8_e4m3fn else cache
        if stored.is_contiguous():
            heads = torch.arange(self.kv_heads, device=cache.device)
            rows = blocks[:, None] * self.kv_heads + heads[:, None]
            taken = stored.view(-1, self.block_size * self.head_dim).index_select(0, rows.flatten())
        else:
            taken = stored[blocks].transpose(1, 2).contiguous()
        taken = taken.reshape(n, self.kv_heads, width, self.block_size, self.head_dim).view(cache.dtype)
        taken = taken.to(self.dtype)
        if scale is not None:
            taken *= scale.to(self.dtype).view(-1, 1, 1, 1)

        which = torch.arange(n, device=cache.device)
        offset = torch.arange(self.block_size, device=cache.device)
        last = (end - 1) // self.block_size
        for block, unused in (
            (torch.zeros_like(last), offset < begin[:, None]),
            (last, offset >= (end - last * self.block_size)[:, None]),
        ):
            edge = taken[which, :, block]
            taken[which, :, block] = edge.masked_fill_(unused[:, None, :, None], 0)
        padded, columns = (torch.arange(width, device=cache.device) > last[:, None]).nonzero(as_tuple=True)
        taken[padded, :, columns] = 0
        return taken.view(n, self.kv_heads, width * self.block_size, self.head_dim)

    def _weights(self, rows: Tensor, keys: Tensor, hidden: Tensor) -> Tensor:
        """Softmax weights of rows [..., kv_heads, group, n?, head_dim] over keys [..., kv_heads, length,
        head_dim]."""
        scaled = rows * self.scale
        if rows.dim() == 4 and keys.dim() == 3:
            scores = (scaled.flatten(1, 2) @ keys.mT).view(*rows.shape[:3], keys.shape[1])
        else:
            scores = scaled @ keys.mT
        if self.softcap is not None:
            scores = (scores / self.softcap).tanh_() * self.softcap
        scores.masked_fill_(hidden, -torch.inf)
        if self.sinks is None:
            return scores.softmax(-1)
        sinks = self.sinks.to(self.dtype)
        sinks = sinks[..., None] if keys.dim() == 3 else sinks
        sink = sinks.expand(*scores.shape[:-1], 1)
        return torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
