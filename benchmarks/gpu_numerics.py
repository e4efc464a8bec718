"""Every op on the device against itself in float64, in each dtype."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from headrace.kernels import (
    AttentionBatch,
    HeadNorm,
    SamplingTensors,
    gelu_tanh_and_mul,
    paged_attention,
    rms_norm,
    rotate_and_write_kv,
    sample,
    silu_and_mul,
    write_kv,
)

from .gpu_report import Row

BF16, FP16, FP32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
NAMES = {BF16: "bf16", FP16: "fp16", FP32: "fp32", FP8: "fp8"}
LIMITS = {BF16: 1e-2, FP16: 2e-3, FP32: 1e-5}
"""Of the largest difference over the largest value: some units in the last place of each dtype."""
BLOCK_SIZE = 16
SEQUENCES = ((1, 1), (1, 16), (1, 17), (1, 1000), (37, 37), (130, 300), (1, 0), (1, 2500), (64, 64))
"""Queries and length of each sequence of a batch: decode, prefill, chunks of it, and a row of padding."""


def check_numerics(device: torch.device, *, quick: bool) -> Iterator[Row]:
    """Rows for attention, cache writes, norms, activations and sampling."""
    for dtype in (BF16, FP16, FP32):
        yield _attention(device, dtype, dtype, 128)
    for dtype in (BF16, FP16):
        yield _attention(device, dtype, FP8, 128)
    if not quick:
        for head_dim in (64, 80, 96, 256):
            yield _attention(device, BF16, BF16, head_dim)
    yield _attention(device, BF16, BF16, 128, window=100, softcap=30.0, sinks=True)
    for dtype in (BF16, FP32):
        yield _beside_prompts(device, dtype)
    for dtype in (BF16, FP16, FP32):
        yield from _writes(device, dtype, dtype)
    yield from _writes(device, BF16, FP8)
    for dtype in (BF16, FP16, FP32):
        yield from _elementwise(device, dtype)
    yield from _sampling(device, 1000 if quick else 262_144)


def _compared(case: str, found: Tensor, expected: Tensor, limit: float) -> Row:
    error = (found.double() - expected).abs().max() / expected.abs().max()
    ratio = float(error) / limit
    return Row(case, f"error {float(error):.2g}", f"of {limit:g}", ratio if ratio == ratio else 1e9, "<= 1")


def _attention(
    device: torch.device,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    head_dim: int,
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
) -> Row:
    heads, kv_heads = 8, 2
    caches, scales, batch = _random_cache(device, cache_dtype, kv_heads, head_dim)
    total = int(batch.query_start[-1])
    query = torch.randn(total, heads, head_dim, device=device).to(dtype)
    sink = torch.randn(heads, device=device).to(dtype) if sinks else None
    options = {"scale": head_dim**-0.5, "sliding_window": window, "softcap": softcap}
    fp8 = cache_dtype == FP8
    found = paged_attention(
        query,
        *caches,
        batch,
        sinks=sink,
        key_scale=scales[0] if fp8 else None,
        value_scale=scales[1] if fp8 else None,
        **options,
    )
    wide = [cache.double().cpu() for cache in caches]
    if fp8:
        factors = [scale.double().cpu()[:, None, None] for scale in scales]
        wide = [cache * factor for cache, factor in zip(wide, factors, strict=True)]
    expected = paged_attention(
        query.double().cpu(),
        *wide,
        _on_the_cpu(batch),
        sinks=None if sink is None else sink.double().cpu(),
        implementation="torch",
        **options,
    )
    kind = ", window, cap, sinks" if window else ""
    case = f"attention {NAMES[dtype]}, cache {NAMES[cache_dtype]}, {head_dim}{kind}"
    return _compared(case, found.cpu(), expected, LIMITS[dtype])


def _on_the_cpu(batch: AttentionBatch) -> AttentionBatch:
    return replace(
        batch,
        query_start=batch.query_start.cpu(),
        lengths=batch.lengths.cpu(),
        block_table=batch.block_table.cpu(),
    )


def _beside_prompts(device: torch.device, dtype: torch.dtype) -> Row:
    """Sequences with one query, alone and in one launch with prompts."""
    heads, kv_heads, head_dim = 8, 2, 128
    caches, _, mixed = _random_cache(device, dtype, kv_heads, head_dim)
    query = torch.randn(int(mixed.query_start[-1]), heads, head_dim, device=device).to(dtype)
    members = [index for index, (queries, _) in enumerate(SEQUENCES) if queries == 1]
    rows = mixed.query_start[members]
    alone = AttentionBatch(
        query_start=torch.arange(len(members) + 1, dtype=torch.int32, device=device),
        lengths=mixed.lengths[members],
        block_table=mixed.block_table[members],
        max_query=1,
        max_length=mixed.max_length,
    )
    scale = head_dim**-0.5
    together = paged_attention(query, *caches, mixed, scale=scale)[rows]
    same = (together == paged_attention(query[rows], *caches, alone, scale=scale)).double().mean()
    case = f"attention, decode beside prompts {NAMES[dtype]}"
    return Row(case, f"{float(same):.2%} equal", "to alone", float(same), ">= 1")


def _random_cache(
    device: torch.device, dtype: torch.dtype, kv_heads: int, head_dim: int
) -> tuple[list[Tensor], list[Tensor], AttentionBatch]:
    """Caches in which the sequences' blocks lie in random order, and blocks that nobody has hold NaN."""
    counts = [-(-length // BLOCK_SIZE) for _, length in SEQUENCES]
    blocks = torch.randperm(sum(counts) + 8)
    table = torch.zeros(len(counts), max(counts), dtype=torch.int32)
    for row, part in zip(table, blocks[: sum(counts)].split(counts), strict=True):
        row[: len(part)] = part
    caches: list[Tensor] = []
    for _ in range(2):
        cache = torch.randn(len(blocks), kv_heads, BLOCK_SIZE, head_dim)
        cache[blocks[sum(counts) :]] = torch.nan
        caches.append(cache.to(dtype).to(device))
    queries = torch.tensor([0, *(queries for queries, _ in SEQUENCES)], dtype=torch.int32)
    batch = AttentionBatch(
        query_start=queries.cumsum(0).int().to(device),
        lengths=torch.tensor([length for _, length in SEQUENCES], dtype=torch.int32, device=device),
        block_table=table.to(device),
        max_query=int(queries.max()),
        max_length=max(length for _, length in SEQUENCES),
    )
    return caches, [torch.rand(kv_heads, device=device) + 0.5 for _ in range(2)], batch


def _writes(device: torch.device, dtype: torch.dtype, cache_dtype: torch.dtype) -> Iterator[Row]:
    tokens, heads, kv_heads, head_dim = 77, 8, 2, 128
    key, value = (torch.randn(tokens, kv_heads, head_dim, device=device).to(dtype) for _ in range(2))
    query = torch.randn(tokens, heads, head_dim, device=device).to(dtype)
    angles = torch.rand(tokens, head_dim // 2, device=device) * 6
    cosine, sine = (torch.cat([half, half], -1) for half in (angles.cos(), angles.sin()))
    slots = torch.randperm(10 * BLOCK_SIZE, device=device)[:tokens]
    slots[5] = -1
    fp8 = cache_dtype == FP8
    scale = torch.tensor([0.1, 0.02], device=device) if fp8 else None
    named = {"key_scale": scale, "value_scale": scale}

    def caches(kind: torch.dtype) -> list[Tensor]:
        shape = (10, kv_heads, BLOCK_SIZE, head_dim)
        return [torch.zeros(shape, dtype=kind, device=device) for _ in range(2)]

    label = f"{NAMES[dtype]}, cache {NAMES[cache_dtype]}"
    # Stored in float8, a number is off by up to a sixteenth of itself.
    limit = 0.07 if fp8 else LIMITS[dtype]
    found, expected = caches(cache_dtype), caches(torch.float64)
    write_kv(key, value, *found, slots, **named)
    write_kv(key.double(), value.double(), *expected, slots, implementation="torch")
    yield _compared(f"K/V write {label}", _stored(found, scale), _stored(expected, None), limit)
    weights = [(torch.rand(head_dim, device=device) + 0.5).to(dtype) for _ in range(2)]
    for kind, norm in (("rotary", None), ("norm, rotary", HeadNorm(weights[0], weights[1], 1e-6))):
        found, expected = caches(cache_dtype), caches(torch.float64)
        rotated = rotate_and_write_kv(query, key, value, cosine, sine, *found, slots, norm=norm, **named)
        turned = rotate_and_write_kv(
            query.double(),
            key.double(),
            value.double(),
            cosine.double(),
            sine.double(),
            *expected,
            slots,
            norm=norm and HeadNorm(norm.query.double(), norm.key.double(), norm.eps),
            implementation="torch",
        )
        yield _compared(f"{kind} query {label}", rotated, turned, LIMITS[dtype])
        yield _compared(f"{kind} K/V write {label}", _stored(found, scale), _stored(expected, None), limit)


def _stored(caches: list[Tensor], scale: Tensor | None) -> Tensor:
    wide = torch.stack([cache.double() for cache in caches])
    return wide if scale is None else wide * scale.double()[:, None, None]


def _elementwise(device: torch.device, dtype: torch.dtype) -> Iterator[Row]:
    x, residual = (torch.randn(33, 4096, device=device).to(dtype) for _ in range(2))
    weight = torch.randn(4096, device=device).to(dtype)
    name, limit = NAMES[dtype], LIMITS[dtype]
    expected = rms_norm(x.double(), weight.double(), 1e-6, offset=1.0, implementation="torch")
    yield _compared(f"RMSNorm {name}", rms_norm(x, weight, 1e-6, offset=1.0), expected, limit)
    found, total = rms_norm(x, weight, 1e-6, residual=residual)
    wide, wide_total = rms_norm(
        x.double(), weight.double(), 1e-6, residual=residual.double(), implementation="torch"
    )
    yield _compared(f"RMSNorm with residual {name}", found, wide, limit)
    yield _compared(f"RMSNorm's residual {name}", total, wide_total, limit)
    for op in (silu_and_mul, gelu_tanh_and_mul):
        yield _compared(f"{op.__name__} {name}", op(x), op(x.double(), implementation="torch"), limit)


def _sampling(device: torch.device, vocabulary: int) -> Iterator[Row]:
    rows = 64
    for dtype in (BF16, FP32):
        logits = (4 * torch.randn(rows, vocabulary, device=device)).to(dtype)
        found = sample(logits, None, num_logprobs=8)
        same = (found.tokens == logits.double().argmax(-1)).double().mean()
        yield Row(f"greedy tokens {NAMES[dtype]}", f"{float(same):.0%} equal", "", float(same), ">= 1")
        expected = logits.double().log_softmax(-1).topk(8).values
        assert found.top_logprobs is not None
        yield _compared(f"log-probabilities {NAMES[dtype]}", found.top_logprobs, expected, 1e-5)
        params = _drawing(rows, device)
        drawn = sample(logits, params).tokens
        reference = sample(logits, params, implementation="torch").tokens
        same = (drawn == reference).double().mean()
        # A sum of two numbers that rounding may order either way is rare, and not an error.
        yield Row(
            f"drawn tokens {NAMES[dtype]}", f"{float(same):.0%} equal", "to torch's", float(same), ">= 0.98"
        )


def _drawing(rows: int, device: torch.device) -> SamplingTensors:
    each = torch.arange(rows, device=device)
    return SamplingTensors(
        temperature=0.5 + each.float() / rows,
        top_k=(each % 3 * 20).int(),
        top_p=torch.where(each % 2 == 0, 0.9, 1.0),
        min_p=torch.where(each % 5 == 0, 0.01, 0.0),
        seed=each * 7919,
        position=each,
    )
