"""What is known about a loaded model, and which models are refused and why."""

from pathlib import Path

import pytest
import torch
from tiny_models import EOS, MAX_POSITIONS, VOCABULARY, save_tiny_model, tiny_model, tiny_tokenizer
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma3nTextConfig,
    MambaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3NextConfig,
    T5Config,
)

from headrace.worker.model.errors import UnservableModelError
from headrace.worker.model.load.loader import load_model, prepare
from headrace.worker.model.load.servable import check_config
from headrace.worker.model.run.kv_tensors import KVLayer, bytes_per_token


def test_facts_of_a_model(tmp_path: Path) -> None:
    info = load_model(save_tiny_model("qwen3", tmp_path, chat_template=True), dtype="bfloat16").info
    assert info.architecture == "Qwen3ForCausalLM"
    assert info.kv_layers == (KVLayer(num_heads=1, head_dim=32),) * 2
    assert bytes_per_token(info.kv_layers, info.dtype) == 2 * 2 * 32 * 2
    assert info.dtype is torch.bfloat16
    assert (info.vocab_size, info.max_positions) == (VOCABULARY, MAX_POSITIONS)
    assert info.eos_ids == {EOS}
    assert info.has_chat_template


def test_every_source_of_end_of_sequence_ids_counts() -> None:
    model = tiny_model("llama")
    model.set_attn_implementation("headrace")
    model.generation_config.eos_token_id = [7, 8]
    model.config.eos_token_id = 9
    loaded = prepare("llama", model, tiny_tokenizer())
    assert loaded.info.eos_ids == {7, 8, 9, EOS}
    assert not loaded.info.has_chat_template


def test_auto_is_float32_on_a_cpu_whatever_the_checkpoint(tmp_path: Path) -> None:
    folder = save_tiny_model("llama", tmp_path)
    load_model(folder, dtype="bfloat16").model.save_pretrained(folder)
    assert load_model(folder).info.dtype is torch.float32


def test_an_unknown_dtype(tmp_path: Path) -> None:
    folder = save_tiny_model("llama", tmp_path)
    with pytest.raises(
        ValueError, match="dtype: must be auto or one of float32, bfloat16, float16, got int7"
    ):
        load_model(folder, dtype="int7")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (T5Config(), "encoder-decoder"),
        (MambaConfig(), "mamba"),
        (Qwen3NextConfig(), "linear_attention"),
        (Gemma3nTextConfig(), "shares K and V across layers"),
    ],
    ids=lambda value: value.model_type if isinstance(value, PreTrainedConfig) else "",
)
def test_configurations_that_cannot_be_paged(config: PreTrainedConfig, reason: str) -> None:
    with pytest.raises(UnservableModelError, match=reason) as caught:
        check_config("some/model", config)
    assert str(caught.value).startswith("some/model: ")


def _bloom() -> PreTrainedModel:
    return BloomForCausalLM(BloomConfig(vocab_size=32, hidden_size=16, n_layer=1, n_head=2))


def _deepseek() -> PreTrainedModel:
    config = DeepseekV3Config(
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        first_k_dense_replace=1,
        intermediate_size=16,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
    )
    return DeepseekV3ForCausalLM(config)


def test_attention_that_cannot_be_replaced() -> None:
    with pytest.raises(UnservableModelError, match="AttentionInterface"):
        prepare("bloom", _bloom(), tiny_tokenizer())


def test_k_and_v_of_different_sizes() -> None:
    model = _deepseek()
    model.set_attn_implementation("headrace")
    with pytest.raises(UnservableModelError, match=r"layer 0 has K of \(2, 16\) and V of \(2, 8\) per token"):
        prepare("deepseek", model, tiny_tokenizer())
