"""The size of the KV cache, and the reason that a worker gives for it."""

from dataclasses import replace

import pytest
import torch
from tiny_models import MAX_POSITIONS, tiny_model, tiny_tokenizer

from headrace.worker.cache_plan import memory_text, plan_cache
from headrace.worker.config import WorkerConfig
from headrace.worker.model.load.loader import LoadedModel, prepare
from headrace.worker.model.run.device_memory import DeviceMemory
from headrace.worker.model.run.kv_tensors import bytes_per_token

GIB = 2**30


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    model = tiny_model("llama")
    model.set_attn_implementation("headrace")
    return prepare("llama", model, tiny_tokenizer())


def test_no_more_memory_than_all_sequences_could_use(loaded: LoadedModel) -> None:
    plan = plan_cache(WorkerConfig(model="m", max_sequences=3, max_model_len=33), loaded)
    assert (plan.num_blocks, plan.max_model_len) == (9, 33)
    assert plan.facts[0].endswith("enough for 3 sequences of 33 tokens")


def test_memory_as_set_limits_the_longest_sequence(loaded: LoadedModel) -> None:
    per_block = 16 * bytes_per_token(loaded.info.kv_layers, torch.float32)
    plan = plan_cache(WorkerConfig(model="m", kv_cache_memory=str(4 * per_block)), loaded)
    assert (plan.num_blocks, plan.max_model_len) == (4, 64)
    assert plan.facts[0].endswith("as set")
    assert plan.facts[1] == "longest sequence: 64 tokens, all of the KV cache"
    with pytest.raises(ValueError, match="max_model_len: must be at most the KV cache's 64 tokens, got 65"):
        plan_cache(WorkerConfig(model="m", kv_cache_memory=str(4 * per_block), max_model_len=65), loaded)


def test_longer_than_the_model(loaded: LoadedModel) -> None:
    with pytest.raises(ValueError, match=f"max_model_len: must be at most the model's {MAX_POSITIONS}"):
        plan_cache(WorkerConfig(model="m", max_model_len=MAX_POSITIONS + 1), loaded)


def test_a_gpus_reason_in_words() -> None:
    memory = DeviceMemory(total=80 * GIB, used=16 * GIB, iteration=GIB // 2)
    expected = "90% of the device's 80 GiB, less 16 GiB in use and 512 MiB for an iteration"
    assert memory_text(memory, 0.9) == expected


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_a_share_of_memory_that_cannot_be(share: float) -> None:
    with pytest.raises(ValueError, match="gpu_memory_utilization: must be at"):
        WorkerConfig(model="m", gpu_memory_utilization=share)


def test_the_dtype_of_a_block_counts(loaded: LoadedModel) -> None:
    whole = WorkerConfig(model="m", kv_cache_memory="64KiB")
    plan = plan_cache(whole, loaded)
    assert (plan.num_blocks, plan.dtype) == (65536 // (2 * 2 * 2 * 16 * 4 * 16), torch.float32)
    assert "512 B each, float32)" in plan.facts[0]
    quarter = plan_cache(replace(whole, kv_cache_dtype="fp8"), loaded)
    assert (quarter.num_blocks, quarter.dtype) == (4 * plan.num_blocks, torch.float8_e4m3fn)
    assert "128 B each, float8_e4m3fn, scales measured)" in quarter.facts[0]


def test_what_can_be_used_counts_the_caches_own_dtype(loaded: LoadedModel) -> None:
    config = WorkerConfig(model="m", max_sequences=3, max_model_len=33, kv_cache_dtype="fp8")
    plan = plan_cache(config, loaded)
    assert plan.num_blocks == 9
    assert plan.memory == 9 * 16 * 128
