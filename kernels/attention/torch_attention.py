"""Paged attention in torch: the reference, and what serves on the CPU.

Sequences with one query are answered together, in groups of similar length gathered into one padded batch; a
sequence with more is answered alone, a slice of its queries at a time. Query heads that share a KV head are
rows of one matrix product, so keys and values are never repeated.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
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
    kv_heads, _, head_dim = key_cache.shape[1:]
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
    window = sliding_window or max(batch.max_length, 1)
    work = _work(batch, window, kv_heads, head_dim, key_cache.shape[2])
    for rows in work.padding:
        out[rows] = 0
    for prompt in work.prompts:
        out[prompt.rows] = attention.prefill(query[prompt.rows], prompt, window)
    for decodes in work.decodes:
        answer = attention.decode(query.index_select(0, decodes.rows), decodes.keys)
        out.index_copy_(0, decodes.rows, answer)


@dataclass(frozen=True, slots=True)
class _Keys:
    """The blocks of n sequences, b of each, and which of their positions are seen."""

    blocks: Tensor
    """int64 [n, b]."""
    rows: Tensor
    """int64 [n * kv_heads * b]: the same in a cache of [num_blocks * kv_heads] rows, heads before blocks."""
    hidden: Tensor
    """bool [n, b * block_size]: positions that are not."""
    edges: Tensor
    """int64 [e]: which of ``rows`` have such positions."""
    unused: Tensor
    """bool [e, block_size]: which those are."""


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A sequence with several queries; ``origin`` is the position of its first block's first key."""

    rows: slice
    keys: _Keys
    length: int
    origin: int


@dataclass(frozen=True, slots=True)
class _Decodes:
    """Sequences with one query each, ``rows`` int64 [n], that are answered together."""

    rows: Tensor
    keys: _Keys


@dataclass(slots=True)
class _Work:
    """What a batch is to the layers that see a window."""

    padding: list[slice] = field(default_factory=list[slice])
    prompts: list[_Prompt] = field(default_factory=list[_Prompt])
    decodes: list[_Decodes] = field(default_factory=list[_Decodes])


def _work(batch: AttentionBatch, window: int, kv_heads: int, head_dim: int, block_size: int) -> _Work:
    """From the batch, or as it was for an earlier layer."""
    if batch.worked_out is None:
        return _worked_out(batch, window, kv_heads, head_dim, block_size)
    key = (window, kv_heads, head_dim, block_size)
    if key not in batch.worked_out:
        batch.worked_out[key] = _worked_out(batch, *key)
    return batch.worked_out[key]


def _worked_out(batch: AttentionBatch, window: int, kv_heads: int, head_dim: int, block_size: int) -> _Work:
    starts: list[int] = batch.query_start.tolist()
    lengths: list[int] = batch.lengths.tolist()
    device = batch.lengths.device
    work = _Work()
    spans: dict[int, tuple[int, int]] = {}
    for sequence, length in enumerate(lengths):
        rows = slice(starts[sequence], starts[sequence + 1])
        queries = rows.stop - rows.start
        if not length:
            work.padding.append(rows)
        elif queries == 1:
            spans[sequence] = (max(0, length - window), length)
        elif queries:
            span = (max(0, length - queries - window + 1), length)
            keys = _keys(batch.block_table[sequence][None], [span], kv_heads, block_size)
            origin = span[0] // block_size * block_size
            work.prompts.append(_Prompt(rows, keys, length, origin))
    for group in _groups(spans, kv_heads * head_dim, block_size):
        tables = batch.block_table.index_select(0, torch.tensor(group, device=device))
        keys = _keys(tables, [spans[sequence] for sequence in group], kv_heads, block_size)
        work.decodes.append(_Decodes(torch.tensor([starts[s] for s in group], device=device), keys))
    return work


def _keys(tables: Tensor, spans: list[tuple[int, int]], kv_heads: int, block_size: int) -> _Keys:
    """Of sequences with block tables [n, ...], the blocks of each one's span, the shorter ones padded."""
    device = tables.device
    first = [begin // block_size for begin, _ in spans]
    width = max(-(-end // block_size) - f for f, (_, end) in zip(first, spans, strict=True))
    begin, end, origin = torch.tensor(
        [
            (begin - f * block_size, end - f * block_size, f)
            for f, (begin, end) in zip(first, spans, strict=True)
        ],
        device=device,
    ).unbind(1)
    # What pads a sequence are blocks of its own.
    column = torch.arange(width, device=device).minimum(((end - 1) // block_size)[:, None])
    blocks = tables.gather(1, column + origin[:, None]).long()
    position = torch.arange(width * block_size, device=device)
    hidden = (position < begin[:, None]) | (position >= end[:, None])
    by_block = hidden.view(len(spans), width, block_size)
    sequence, column = by_block.any(-1).nonzero(as_tuple=True)
    heads = torch.arange(kv_heads, device=device)
    return _Keys(
        blocks,
        (blocks[:, None] * kv_heads + heads[:, None]).flatten(),
        hidden,
        (((sequence * kv_heads)[:, None] + heads) * width + column[:, None]).flatten(),
        by_block[sequence, column].repeat_interleave(kv_heads, 0),
    )


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

    def decode(self, query: Tensor, keys: _Keys) -> Tensor:
        """query [n, heads, head_dim], one per sequence; like query."""
        n, heads, _ = query.shape
        rows = query.to(self.dtype).view(n, self.kv_heads, heads // self.kv_heads, self.head_dim)
        weights = self._weights(rows, self._gather_keys(keys), keys.hidden[:, None, None])
        return (weights @ self._gather_values(keys)).view(query.shape).to(query.dtype)

    def prefill(self, query: Tensor, prompt: _Prompt, window: int) -> Tensor:
        """query [n, heads, head_dim] of one sequence, its last n tokens; like query."""
        n, heads, _ = query.shape
        group = heads // self.kv_heads
        device = query.device
        length, origin = prompt.length, prompt.origin
        keys = self._gather_keys(prompt.keys)[0]
        values = self._gather_values(prompt.keys)[0]
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

    def _gather_keys(self, keys: _Keys) -> Tensor:
        """[n, kv_heads, b * block_size, head_dim]. Where they are hidden they may be NaN, and so their
        scores."""
        return self._by_sequence(self._gather(self.key_cache, keys, self.key_scale), keys)

    def _gather_values(self, keys: _Keys) -> Tensor:
        """[n, kv_heads, b * block_size, head_dim], zero where hidden: a weight of zero does not hide a NaN
        that an unused position may hold."""
        values = self._gather(self.value_cache, keys, self.value_scale)
        if keys.edges.numel():
            edges = values.index_select(0, keys.edges)
            values.index_copy_(0, keys.edges, edges.masked_fill_(keys.unused[..., None], 0))
        return self._by_sequence(values, keys)

    def _gather(self, cache: Tensor, keys: _Keys, scale: Tensor | None) -> Tensor:
        """The blocks of n sequences' heads, [n * kv_heads * b, block_size, head_dim]."""
        # torch cannot index float8.
        stored = cache.view(torch.uint8) if cache.dtype == torch.float8_e4m3fn else cache
        if stored.is_contiguous():
            taken = stored.view(-1, self.block_size * self.head_dim).index_select(0, keys.rows)
        else:
            taken = stored[keys.blocks].transpose(1, 2).contiguous()
        taken = taken.view(-1, self.block_size, self.head_dim).view(cache.dtype).to(self.dtype)
        if scale is not None:
            n, width = keys.blocks.shape
            each = scale.to(self.dtype)[:, None].expand(n, -1, width).reshape(-1, 1, 1)
            taken *= each
        return taken

    def _by_sequence(self, taken: Tensor, keys: _Keys) -> Tensor:
        return taken.view(len(keys.blocks), self.kv_heads, -1, self.head_dim)

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
