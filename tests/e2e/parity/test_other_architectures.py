"""What the six architectures do not have: attention sinks, learned positions, partial rotation, experts."""

import copy
import random
from typing import Any

import pytest
import torch
from parity import random_prompts, reference_cases, serve
from tiny_models import EOS, PAD, VOCABULARY, WINDOW, tiny_tokenizer
from transformers import (
    Cohere2Config,
    Cohere2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    Ministral3Config,
    Ministral3ForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedModel,
)

from headrace.worker.model.load.loader import prepare
from headrace.worker.model.passes.fusion import fuse_layers

IDS: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": EOS, "pad_token_id": PAD}
SHAPE: dict[str, Any] = IDS | {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": False,
}


def _sinks_and_experts() -> PreTrainedModel:
    return GptOssForCausalLM(
        GptOssConfig(**SHAPE, sliding_window=WINDOW, num_local_experts=4, num_experts_per_tok=2)
    )


def _learned_positions() -> PreTrainedModel:
    return GPT2LMHeadModel(GPT2Config(**IDS, n_embd=64, n_layer=2, n_head=4, n_positions=128))


def _partial_rotation_and_biases() -> PreTrainedModel:
    shape = {name: value for name, value in SHAPE.items() if name != "head_dim"}
    return PhiForCausalLM(PhiConfig(**shape))


def _layers_without_rotation() -> PreTrainedModel:
    return Cohere2ForCausalLM(Cohere2Config(**SHAPE, sliding_window=WINDOW))


def _multiplied_residuals() -> PreTrainedModel:
    return GraniteForCausalLM(
        GraniteConfig(**SHAPE, residual_multiplier=0.6, embedding_multiplier=2.0, attention_multiplier=0.3)
    )


def _norms_after() -> PreTrainedModel:
    return Olmo2ForCausalLM(Olmo2Config(**SHAPE))


def _attention_that_changes_late() -> PreTrainedModel:
    """Queries are scaled from position 8,192 on, where no test goes: it must be seen all the same."""
    return Ministral3ForCausalLM(Ministral3Config(**SHAPE))


@pytest.mark.parametrize(
    ("build", "fused_attentions", "fused_decoders"),
    [
        (_sinks_and_experts, 0, 0),
        (_learned_positions, 0, 0),
        (_partial_rotation_and_biases, 4, 0),
        (_layers_without_rotation, 0, 0),
        (_multiplied_residuals, 4, 0),
        (_norms_after, 0, 0),
        (_attention_that_changes_late, 0, 4),
    ],
)
def test_mixed_batches_of_staggered_arrivals(build: Any, fused_attentions: int, fused_decoders: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # pytest shows it when the test fails
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    plain: PreTrainedModel = build().eval()
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                embeds = any(part in name for part in ("embed_tokens", "lm_head", "wte"))
                parameter.copy_(noise if embeds else noise * 1.5 / parameter.shape[-1] ** 0.5)
            elif name.endswith(("bias", "sinks")):
                parameter.copy_(noise * 0.5)
    served = copy.deepcopy(plain)
    served.set_attn_implementation("headrace")
    prompts = random_prompts(rng, lambda: rng.randrange(PAD + 1, VOCABULARY), 30)
    cases = reference_cases(plain, prompts, 4, max_tokens=10, eos=EOS)
    loaded = prepare("tiny", served, tiny_tokenizer())
    expected = [case.expected for case in cases]
    options = {"max_tokens": 10, "block_size": 4, "max_batched_tokens": 16, "stagger": 3}
    assert serve(loaded, cases, **options).outputs == expected
    # What a GPU's passes recognize is replaced, and nothing else.
    fused = fuse_layers(served, "torch")
    assert (fused.attentions, fused.decoders) == (fused_attentions, fused_decoders)
    assert serve(loaded, cases, **options).outputs == expected
