"""Models of given shapes with random weights, made on their device, and engines that run them."""

from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from headrace.worker.engine.detokenizer import Detokenizer
from headrace.worker.engine.engine import Engine
from headrace.worker.engine.iteration import Runner
from headrace.worker.model.load.loader import LoadedModel, prepare
from headrace.worker.model.run.attention import ATTENTION_NAME
from headrace.worker.model.run.recording import CudaGraphs
from headrace.worker.model.run.runner import ModelRunner

from .roofline import MODELS, Model

BLOCK_SIZE = 16
LLAMA_8B, QWEN_06B = MODELS[0], MODELS[1]
TINY = Model("tiny", 2, 64, 4, 2, 16, 128, 512)


def config_of(shape: Model) -> PreTrainedConfig:
    """Qwen3's for the shape of that name, which normalizes queries and keys, else Llama's."""
    sizes: dict[str, Any] = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
        "eos_token_id": None,
        "bos_token_id": None,
        "pad_token_id": None,
    }
    return Qwen3Config(**sizes) if "Qwen3" in shape.name else LlamaConfig(**sizes)


def build(shape: Model, dtype: torch.dtype, device: torch.device) -> LoadedModel:
    """A servable model of random weights."""
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            config_of(shape), dtype=dtype, attn_implementation=ATTENTION_NAME
        )
    return prepare(shape.name, model, _tokenizer())


def spread(model: nn.Module) -> None:
    """Give a small model weights whose greedy tokens vary and whose best two logits lie well apart."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(False)
            if "embed_tokens" in name or "lm_head" in name:
                parameter.normal_()
            elif parameter.dim() == 2:
                parameter.normal_(std=1.5 / parameter.shape[1] ** 0.5)


def _tokenizer() -> PreTrainedTokenizerFast:
    """Bytes; the ids above them have no text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: at for at, symbol in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of an engine: sequences at once, the longest one, and tokens in an iteration."""

    max_sequences: int
    max_model_len: int
    max_batched_tokens: int

    @property
    def num_blocks(self) -> int:
        return self.max_sequences * (-(-self.max_model_len // BLOCK_SIZE) + 1)


def make_runner(
    loaded: LoadedModel, limits: Limits, *, graphs: bool, kv_dtype: torch.dtype | None = None
) -> ModelRunner:
    """A runner whose cache holds all sequences at their longest."""
    runner = ModelRunner(
        loaded,
        num_blocks=limits.num_blocks,
        block_size=BLOCK_SIZE,
        max_sequences=limits.max_sequences,
        max_model_len=limits.max_model_len,
        kv_dtype=kv_dtype,
    )
    if graphs:
        runner.record_graphs(CudaGraphs(loaded.info.device), lambda _done, _of: None)
    return runner


def make_engine(loaded: LoadedModel, runner: Runner, limits: Limits, *, overlap: bool) -> Engine:
    """An engine without prefix caching, so that every sequence reads a cache of its own."""
    return Engine(
        runner,
        Detokenizer.of(loaded.tokenizer.backend_tokenizer),
        num_blocks=limits.num_blocks,
        block_size=BLOCK_SIZE,
        max_batched_tokens=limits.max_batched_tokens,
        max_sequences=limits.max_sequences,
        max_model_len=limits.max_model_len,
        prefix_caching=False,
        overlap=overlap,
    )
