"""The floors that measurements are held against, recomputed by hand."""

import pytest
from benchmarks.roofline import H200, MODELS, attention, step

LLAMA, _, GEMMA = MODELS


def test_decode_attention_reads_each_sequence_s_keys_and_values_once() -> None:
    cost = attention(LLAMA, sequences=64, queries=1, length=4096)
    cache = 64 * 4096 * 32 * 2 * 8 * 128 * 2
    assert cache < cost.bytes < 1.01 * cache
    assert cost.flops == 64 * 4096 * 32 * 4 * 32 * 128
    assert cost.floor(H200) == pytest.approx(cost.bytes / 4.3e6)


def test_windowed_layers_read_their_window_only() -> None:
    cost = attention(GEMMA, sequences=1, queries=1, length=4096)
    cache = (15 * 512 + 3 * 4096) * 2 * 256 * 2
    assert cache < cost.bytes < 1.01 * cache


def test_causal_prefill_does_half_of_the_square() -> None:
    cost = attention(LLAMA, sequences=1, queries=1000, length=1000)
    assert cost.flops == pytest.approx(32 * 4 * 32 * 128 * 1000 * 1001 / 2)


def test_a_decode_step_reads_all_weights_once() -> None:
    """8.03 billion parameters, of which the embedding's 0.53 are only looked up."""
    moved = sum(cost.bytes for cost in step(LLAMA, 1, 1, 1)) / 2
    assert moved == pytest.approx(8.03e9 - 0.525e9, rel=0.01)
