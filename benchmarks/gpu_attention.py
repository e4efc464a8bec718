"""Attention and cache writes against the rates that the device itself shows in a copy and a matmul."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headrace.kernels import AttentionBatch, paged_attention, write_kv

from .gpu_report import Row
from .gpu_timing import copy_rate, matmul_rate, random_tensor, seconds

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 32, 8, 128, 16
"""Of Llama 3.1 8B."""
SCALE = HEAD_DIM**-0.5
DTYPE = torch.bfloat16


def check_decode(device: torch.device, *, quick: bool) -> Iterator[Row]:
    """Decode attention and cache writes over the copy rate; attention beside SDPA on contiguous K and V."""
    rate = copy_rate(device)
    yield Row("copy", f"{rate / 1e12:.3g} TB/s", "read and written")
    batches = (1, 4) if quick else (1, 8, 32, 64, 128, 256)
    contexts = (128,) if quick else (1024, 4096, 16384, 32768)
    caches = _caches(max(batches) * max(contexts), device)
    for context in contexts:
        for batch in batches:
            yield from _decode_rows(caches, batch, context, rate, device)
    small = tuple(_small(cache) for cache in caches)
    for context in contexts[-1:] if quick else (4096, 16384):
        for batch in batches[-1:] if quick else (32, 128):
            yield _float8_row(small, batch, context, rate, device)
    for tokens in (1, 16) if quick else (1, 64, 256, 1024, 8192):
        yield _write_row(caches, tokens, rate, device)


def check_prefill(device: torch.device, *, quick: bool) -> Iterator[Row]:
    """Prefill attention over the matmul rate, and beside SDPA."""
    rate = matmul_rate(device)
    yield Row("matmul", f"{rate / 1e12:.4g} TFLOP/s", "bfloat16")
    for length in (128,) if quick else (1024, 4096, 8192, 16384):
        caches = _caches(length, device)
        query = random_tensor(length, HEADS, HEAD_DIM, dtype=DTYPE, device=device)
        batch = _batch(1, length, queries=length, device=device)
        out = torch.empty_like(query)
        time = seconds(
            lambda: paged_attention(query, *caches, batch, scale=SCALE, out=out),  # noqa: B023
            device,
        )
        flops = 4.0 * HEADS * HEAD_DIM * length * (length + 1) / 2
        achieved = flops / time
        yield Row(
            f"attention, prompt of {length}",
            f"{achieved / 1e12:.4g} TFLOP/s",
            f"of {rate / 1e12:.4g} TFLOP/s",
            achieved / rate,
            ">= 0.6" if length >= 8192 else "",
        )
        queries = query.view(1, length, HEADS, HEAD_DIM).transpose(1, 2)
        keys, values = (cache.view(1, KV_HEADS, length, HEAD_DIM) for cache in caches)
        yield _sdpa_row(f"attention, prompt of {length}", time, queries, keys, values, causal=True)
    for sequences, context, prompt in ((2, 64, 64),) if quick else ((64, 4096, 2048), (16, 16384, 512)):
        yield _mixed_row(sequences, context, prompt, device)


def _decode_rows(
    caches: tuple[Tensor, Tensor], batch: int, context: int, rate: float, device: torch.device
) -> Iterator[Row]:
    query = random_tensor(batch, HEADS, HEAD_DIM, dtype=DTYPE, device=device)
    out = torch.empty_like(query)
    sequences = _batch(batch, context, queries=1, device=device)
    time = seconds(lambda: paged_attention(query, *caches, sequences, scale=SCALE, out=out), device)
    read = 2 * batch * context * KV_HEADS * HEAD_DIM * DTYPE.itemsize
    achieved = read / time
    case = f"attention, {batch} sequences of {context}"
    yield Row(
        case,
        f"{achieved / 1e12:.3g} TB/s",
        f"{time * 1e6:.1f} us, over the copy's",
        achieved / rate,
        ">= 0.85" if batch >= 32 and context >= 4096 else "",
    )
    used = batch * context // BLOCK_SIZE
    keys, values = (cache[:used].view(batch, KV_HEADS, context, HEAD_DIM) for cache in caches)
    yield _sdpa_row(case, time, query.unsqueeze(2), keys, values, causal=False)


def _mixed_row(sequences: int, context: int, prompt: int, device: torch.device) -> Row:
    """A prompt and decoding sequences in one launch, beside one launch for each."""
    caches = _caches(sequences * context + prompt, device)
    decodes = _batch(sequences, context, queries=1, device=device)
    first_block = sequences * context // BLOCK_SIZE
    prompts = _batch(1, prompt, queries=prompt, device=device)
    prompts = replace(prompts, block_table=prompts.block_table + first_block)
    table = torch.zeros(sequences + 1, context // BLOCK_SIZE, dtype=torch.int32, device=device)
    table[:-1] = decodes.block_table
    table[-1, : prompt // BLOCK_SIZE] = prompts.block_table[0]
    mixed = AttentionBatch(
        query_start=torch.cat([decodes.query_start, prompts.query_start[1:] + sequences]),
        lengths=torch.cat([decodes.lengths, prompts.lengths]),
        block_table=table,
        max_query=prompt,
        max_length=context,
    )
    query = random_tensor(sequences + prompt, HEADS, HEAD_DIM, dtype=DTYPE, device=device)
    out = torch.empty_like(query)
    one, first, second = (
        seconds(
            lambda: paged_attention(query[rows], *caches, batch, scale=SCALE, out=out[rows]),  # noqa: B023
            device,
        )
        for rows, batch in (
            (slice(None), mixed),
            (slice(sequences), decodes),
            (slice(sequences, None), prompts),
        )
    )
    return Row(
        f"attention, {sequences} of {context} and prompt of {prompt}",
        f"{one * 1e6:.1f} us",
        f"{(first + second) * 1e6:.1f} us apart",
        one / (first + second),
        "<= 1" if device.type == "cuda" else "",
    )


def _small(cache: Tensor) -> Tensor:
    """The cache in float8, made piece by piece: in one it would take the larger one's memory again."""
    result = torch.empty_like(cache, dtype=torch.float8_e4m3fn)
    for part, source in zip(result.split(65536), cache.split(65536), strict=True):
        part.copy_(source)
    return result


def _float8_row(
    caches: tuple[Tensor, ...], batch: int, context: int, rate: float, device: torch.device
) -> Row:
    query = random_tensor(batch, HEADS, HEAD_DIM, dtype=DTYPE, device=device)
    out = torch.empty_like(query)
    sequences = _batch(batch, context, queries=1, device=device)
    scale = torch.ones(KV_HEADS, device=device)
    time = seconds(
        lambda: paged_attention(
            query, *caches, sequences, scale=SCALE, key_scale=scale, value_scale=scale, out=out
        ),
        device,
    )
    achieved = 2 * batch * context * KV_HEADS * HEAD_DIM / time
    case = f"attention, {batch} sequences of {context}, float8"
    timing = f"{time * 1e6:.1f} us, over the copy's"
    return Row(case, f"{achieved / 1e12:.3g} TB/s", timing, achieved / rate)


def _sdpa_row(case: str, time: float, query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> Row:
    case = f"{case}, to SDPA's"
    try:
        other = seconds(
            lambda: scaled_dot_product_attention(
                query, key, value, is_causal=causal, scale=SCALE, enable_gqa=True
            ),
            query.device,
        )
    except torch.OutOfMemoryError:  # where it repeats keys and values for each query head
        return Row(case, f"{time * 1e6:.1f} us", "out of memory")
    target = "<= 1" if query.is_cuda else ""
    return Row(case, f"{time * 1e6:.1f} us", f"{other * 1e6:.1f} us", time / other, target)


def _write_row(caches: tuple[Tensor, Tensor], tokens: int, rate: float, device: torch.device) -> Row:
    key, value = (random_tensor(tokens, KV_HEADS, HEAD_DIM, dtype=DTYPE, device=device) for _ in range(2))
    slots = torch.randperm(caches[0].shape[0] * BLOCK_SIZE, device=device)[:tokens]
    time = seconds(lambda: write_kv(key, value, *caches, slots), device)
    achieved = 4 * key.numel() * key.element_size() / time
    timing = f"{time * 1e6:.1f} us, over the copy's"
    return Row(f"K/V write, {tokens} tokens", f"{achieved / 1e12:.3g} TB/s", timing, achieved / rate)


def _caches(tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
    shape = (tokens // BLOCK_SIZE, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    keys = random_tensor(*shape, dtype=DTYPE, device=device)
    return keys, random_tensor(*shape, dtype=DTYPE, device=device)


def _batch(sequences: int, length: int, *, queries: int, device: torch.device) -> AttentionBatch:
    """Sequences whose blocks lie all over the cache."""
    blocks = torch.randperm(sequences * length // BLOCK_SIZE, device=device)
    return AttentionBatch(
        query_start=torch.arange(0, sequences * queries + 1, queries, dtype=torch.int32, device=device),
        lengths=torch.full((sequences,), length, dtype=torch.int32, device=device),
        block_table=blocks.int().view(sequences, -1),
        max_query=queries,
        max_length=length,
    )
