"""The floors that measurements are held against, recomputed by hand."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "benchmarks.roofline", "--json"]
    return json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)


def find(rows: list[dict[str, Any]], model: str, case: str, op: str) -> dict[str, Any]:
    return next(row for row in rows if (row["model"], row["case"], row["op"]) == (model, case, op))


def test_decode_attention_reads_each_sequence_s_keys_and_values_once(rows: list[dict[str, Any]]) -> None:
    row = find(rows, "Llama-3.1-8B", "decode 64 x 4096", "attention")
    cache = 64 * 4096 * 32 * 2 * 8 * 128 * 2
    assert cache < row["bytes"] < 1.01 * cache
    assert row["flops"] == 64 * 4096 * 32 * 4 * 32 * 128
    assert row["H200_us"] == pytest.approx(row["bytes"] / 4.3e6)


def test_windowed_layers_read_their_window_only(rows: list[dict[str, Any]]) -> None:
    row = find(rows, "Gemma-3-270M", "decode 1 x 4096", "attention")
    cache = (15 * 512 + 3 * 4096) * 2 * 256 * 2
    assert cache < row["bytes"] < 1.01 * cache


def test_causal_prefill_does_half_of_the_square(rows: list[dict[str, Any]]) -> None:
    row = find(rows, "Llama-3.1-8B", "prefill 8192", "attention")
    assert row["flops"] == pytest.approx(32 * 4 * 32 * 128 * 8192 * 8193 / 2)


def test_a_decode_step_reads_all_weights_once(rows: list[dict[str, Any]]) -> None:
    """8.03 billion parameters, of which the embedding's 0.53 are only looked up."""
    step = [row for row in rows if (row["model"], row["case"]) == ("Llama-3.1-8B", "decode 1 x 1024")]
    weights = sum(row["bytes"] for row in step if row["op"] != "attention") / 2
    assert weights == pytest.approx(8.03e9 - 0.525e9, rel=0.01)
