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
    PhiConfig,
    PhiForCausalLM,
    PreTrainedModel,
)

from headrace.worker.model.loader import prepare

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


@pytest.mark.parametrize(
    "build", [_sinks_and_experts, _learned_positions, _partial_rotation_and_biases, _layers_without_rotation]
)
def test_mixed_batches_of_staggered_arrivals(build: Any) -> None:
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
    outcome = serve(
        prepare("tiny", served, tiny_tokenizer()),
        cases,
        max_tokens=10,
        block_size=4,
        max_batched_tokens=16,
        stagger=3,
    )
    assert outcome.outputs == [case.expected for case in cases]
