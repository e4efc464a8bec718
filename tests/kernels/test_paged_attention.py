"""Paged attention equals its float64 reference, whatever the batch and the block tables look like."""

import random
from typing import Any

import pytest
import torch
from attention_cases import Case, make_case, relative_error
from torch.nn.functional import scaled_dot_product_attention

from headrace.kernels import AttentionBatch, Implementation, paged_attention
from headrace.kernels.attention import reference_attention

BOTH = pytest.mark.parametrize("implementation", ["torch", "triton"])
TILE = 32
LIMITS = {torch.float32: 1e-5, torch.float16: 3e-3}


def reference(case: Case, **options: Any) -> torch.Tensor:
    return reference_attention(case.query, case.key_cache, case.value_cache, case.batch, **options)


@pytest.mark.parametrize("window", [None, 5])
def test_reference_is_dense_attention_of_each_sequence(window: int | None) -> None:
    """Against torch's own attention, on keys and values that have never been in blocks."""
    case = make_case([(1, 20), (6, 30), (7, 7)], dtype=torch.float64, head_dim=16, sliding_window=window)
    found = reference(case, scale=0.3, sliding_window=window)
    rows = case.query.split(case.batch.query_start.diff().tolist())
    expected: list[torch.Tensor] = []
    for query, keys, values in zip(rows, case.keys, case.values, strict=True):
        age = torch.arange(len(keys))[-len(query) :, None] - torch.arange(len(keys))
        visible = (age >= 0) & (age < (window or len(keys)))
        q, k, v = (x.transpose(0, 1) for x in (query, keys, values))
        dense = scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=0.3, enable_gqa=True)
        expected.append(dense.transpose(0, 1))
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-12, atol=1e-12)


def check(
    implementation: Implementation,
    sequences: list[tuple[int, int]],
    *,
    dtype: torch.dtype = torch.float32,
    shape: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    shape = shape or {}
    case = make_case(sequences, dtype=dtype, sliding_window=options.get("sliding_window"), **shape)
    scale = shape.get("head_dim", 64) ** -0.5
    result = paged_attention(
        case.query,
        case.key_cache,
        case.value_cache,
        case.batch,
        scale=scale,
        implementation=implementation,
        **options,
    )
    assert result.dtype == dtype
    assert relative_error(result, reference(case, scale=scale, **options)) < LIMITS[dtype]


@BOTH
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("block_size", [4, 16, 64])
def test_lengths_around_blocks_and_tiles(
    implementation: Implementation, dtype: torch.dtype, block_size: int
) -> None:
    lengths = {1, block_size - 1, block_size, block_size + 1, TILE - 1, TILE, TILE + 1, 2 * TILE + 1} - {0}
    sequences = [(random.choice([1, min(3, length), length]), length) for length in lengths]
    random.shuffle(sequences)
    check(
        implementation,
        sequences,
        dtype=dtype,
        shape={"block_size": block_size, "head_dim": 16, "heads": 2, "kv_heads": 1},
    )


@BOTH
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_head_dims(implementation: Implementation, head_dim: int) -> None:
    check(implementation, [(1, 37), (5, 40)], shape={"head_dim": head_dim, "heads": 2, "kv_heads": 1})


@BOTH
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (6, 2), (7, 1), (20, 1), (8, 2)])
def test_head_groups(implementation: Implementation, heads: int, kv_heads: int) -> None:
    """Also groups that are no power of two, or larger than a tile."""
    check(
        implementation,
        [(1, 50), (9, 20), (1, 3)],
        shape={"heads": heads, "kv_heads": kv_heads, "head_dim": 16},
    )


@BOTH
@pytest.mark.parametrize("window", [1, 5, 16, 33, 1000])
def test_sliding_window_reads_nothing_older(implementation: Implementation, window: int) -> None:
    """What is older than the window is NaN, or its block is gone from the table."""
    sequences = [(1, 1), (1, 100), (7, 90), (40, 40), (1, 17)]
    check(implementation, sequences, sliding_window=window, shape={"head_dim": 16})


@BOTH
def test_softcap(implementation: Implementation) -> None:
    check(implementation, [(1, 70), (12, 33)], softcap=0.7, shape={"head_dim": 16})


@BOTH
@pytest.mark.parametrize("window", [None, 20])
def test_sinks(implementation: Implementation, window: int | None) -> None:
    """With splits, the sink must count once."""
    options: dict[str, Any] = {"sinks": torch.randn(4) * 3, "sliding_window": window}
    check(implementation, [(1, 200), (1, 3), (12, 33)], shape={"head_dim": 16}, **options)


@BOTH
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_float8_cache(implementation: Implementation, dtype: torch.dtype) -> None:
    options = {"key_scale": torch.rand(2) + 0.1, "value_scale": torch.rand(2) + 0.1}
    shape = {"cache_dtype": torch.float8_e4m3fn, "head_dim": 32}
    check(implementation, [(1, 70), (12, 33), (1, 1)], dtype=dtype, shape=shape, **options)


@BOTH
def test_everything_at_once(implementation: Implementation) -> None:
    options = {
        "sliding_window": random.randint(1, 90),
        "softcap": 3.0,
        "sinks": torch.randn(6),
        "key_scale": torch.rand(3) + 0.1,
        "value_scale": torch.rand(3) + 0.1,
    }
    shape = {"cache_dtype": torch.float8_e4m3fn, "head_dim": 24, "heads": 6, "kv_heads": 3, "block_size": 8}
    lengths = [random.randint(1, 100) for _ in range(3)]
    sequences = [(random.choice([1, length, random.randint(1, length)]), length) for length in lengths]
    check(implementation, sequences, shape=shape, **options)


@BOTH
def test_many_splits(implementation: Implementation) -> None:
    """More keys than the shortest splits hold."""
    check(implementation, [(1, 300), (1, 65), (1, 64)], shape={"head_dim": 16})


@BOTH
def test_padding_gives_zeros_and_absent_sequences_nothing(
    implementation: Implementation,
) -> None:
    case = make_case([(1, 20), (1, 0), (0, 0), (2, 0)], head_dim=16)
    result = paged_attention(
        case.query, case.key_cache, case.value_cache, case.batch, scale=0.25, implementation=implementation
    )
    assert relative_error(result[:1], reference(case, scale=0.25)[:1]) < 1e-5
    assert not result[1:].any()


@BOTH
def test_strided_query_and_given_output(implementation: Implementation) -> None:
    """A query that is a slice of a packed projection, and a cache that is one of a pair."""
    case = make_case([(1, 20), (6, 30)], head_dim=16)
    packed = torch.randn(7, 8, 16)
    packed[:, :4] = case.query
    pair = torch.stack([case.key_cache, case.value_cache], dim=1)
    out = torch.full_like(case.query, float("nan"))
    result = paged_attention(
        packed[:, :4], pair[:, 0], pair[:, 1], case.batch, scale=0.25, out=out, implementation=implementation
    )
    assert result is out
    assert relative_error(out, reference(case, scale=0.25)) < 1e-5


def test_bad_arguments_are_named() -> None:
    case = make_case([(1, 20)], head_dim=16)
    good: dict[str, Any] = {
        "query": case.query,
        "key_cache": case.key_cache,
        "value_cache": case.value_cache,
        "batch": case.batch,
        "scale": 1.0,
    }
    long = AttentionBatch(
        case.batch.query_start.long(), case.batch.lengths, case.batch.block_table, max_query=1, max_length=20
    )
    bad: dict[str, dict[str, Any]] = {
        "query": {"query": case.query[0]},
        "key_cache": {"key_cache": case.key_cache.half(), "value_cache": case.value_cache.half()},
        "value_cache": {"value_cache": case.value_cache[:1]},
        "batch.query_start": {"batch": long},
        "sliding_window": {"sliding_window": 0},
        "softcap": {"softcap": -1.0},
        "sinks": {"sinks": torch.zeros(3)},
        "key_scale": {"key_scale": torch.ones(2)},
        "out": {"out": case.query.half()},
        "implementation": {"implementation": "cuda"},
    }
    for name, change in bad.items():
        with pytest.raises(ValueError, match=f"^{name}:"):
            paged_attention(**{**good, **change})


def test_triton_on_the_cpu_needs_its_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    case = make_case([(1, 20)], head_dim=16)
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1"):
        paged_attention(
            case.query, case.key_cache, case.value_cache, case.batch, scale=1.0, implementation="triton"
        )


@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("window", [None, 21])
def test_decodes_padded_to_one_length_read_nothing_beyond_their_own(
    block_size: int, window: int | None
) -> None:
    """On the CPU, decodes of nearly equal length are computed together, the shorter ones padded."""
    kv_heads, head_dim = 2, 16
    lengths = [10 * block_size - 1, 9 * block_size + 1, 8 * block_size + 2]
    blocks = [-(-length // block_size) for length in lengths]
    keys = torch.full((sum(blocks), kv_heads, block_size, head_dim), torch.nan)
    values = keys.clone()
    table = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
    places = iter(torch.randperm(sum(blocks)).tolist())
    for row, length in enumerate(lengths):
        for column in range(blocks[row]):
            table[row, column] = block = next(places)
            used = min(block_size, length - column * block_size)
            keys[block, :, :used] = torch.randn(kv_heads, used, head_dim)
            values[block, :, :used] = torch.randn(kv_heads, used, head_dim)
    query = torch.randn(len(lengths), 4, head_dim)

    def attend(rows: list[int]) -> torch.Tensor:
        batch = AttentionBatch(
            query_start=torch.arange(len(rows) + 1, dtype=torch.int32),
            lengths=torch.tensor([lengths[row] for row in rows], dtype=torch.int32),
            block_table=table[rows],
            max_query=1,
            max_length=max(lengths[row] for row in rows),
        )
        return paged_attention(
            query[rows], keys, values, batch, scale=0.25, sliding_window=window, implementation="torch"
        )

    together = attend([0, 1, 2])
    alone = torch.cat([attend([row]) for row in range(3)])
    assert torch.isfinite(together).all()
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)
