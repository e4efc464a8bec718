"""Tiny random models of several architectures, made on the fly as folders a worker can load."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCABULARY = 384
BOS, EOS, PAD = 0, 1, 2
WINDOW = 8
"""Sliding window of the models that have one: prompts longer than this leave it."""
MAX_POSITIONS = 512

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)

_TEXT = [
    "The water from the mill stream turns the wheel, and the wheel turns the stone.",
    "A request waits in the queue until a worker takes it into the batch.",
    "Every token of the answer is delivered in order, exactly once, to whoever asks for it.",
    "Das Wasser läuft über das Rad; l'eau fait tourner la roue du moulin. 水が流れる。 🌊",
    "def add(a, b):\n    return a + b\n\nprint(add(1, 2), 3.14159, [10, 20, 30])\n",
]


def _shape(**changes: Any) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": MAX_POSITIONS,
        "tie_word_embeddings": False,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }
    return shape | changes


def _llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**_shape()))


def _mistral() -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**_shape(sliding_window=WINDOW)))


def _qwen2() -> PreTrainedModel:
    shape = _shape(num_hidden_layers=3)
    del shape["head_dim"]
    return Qwen2ForCausalLM(Qwen2Config(**shape))


def _qwen3() -> PreTrainedModel:
    shape = _shape(head_dim=32, num_key_value_heads=1, tie_word_embeddings=True)
    return Qwen3ForCausalLM(Qwen3Config(**shape))


def _gemma2() -> PreTrainedModel:
    config = Gemma2Config(
        **_shape(
            sliding_window=WINDOW,
            query_pre_attn_scalar=16,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=30.0,
            layer_types=["sliding_attention", "full_attention"],
        )
    )
    return Gemma2ForCausalLM(config)


def _gemma3() -> PreTrainedModel:
    config = Gemma3TextConfig(
        **_shape(
            num_hidden_layers=4,
            sliding_window=WINDOW,
            query_pre_attn_scalar=16,
            layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        )
    )
    return Gemma3ForCausalLM(config)


ARCHITECTURES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
}


def tiny_model(architecture: str, seed: int = 0) -> PreTrainedModel:
    """A float32 model whose greedy tokens vary and whose best two logits lie well apart.

    Freshly initialized models repeat one token and nearly tie on it; here matrices keep the scale of what
    passes through them, biases and norms are random too, and the logits spread over tens of nats.
    """
    model = ARCHITECTURES[architecture]().eval()
    # Some versions' default for Gemma 2 leaves out the cap of attention's logits.
    model.set_attn_implementation("eager")
    config: PreTrainedConfig = model.config
    generator = torch.Generator().manual_seed(seed)
    # Without attention and MLP outweighing the embedding, tied weights would predict the last token for ever.
    scale = 0.3 if config.tie_word_embeddings else 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "embed_tokens" in name or "lm_head" in name:
                parameter.copy_(noise * scale)
            elif parameter.dim() == 2:
                parameter.copy_(noise * 1.5 / parameter.shape[1] ** 0.5)
            elif name.endswith("bias"):
                parameter.copy_(noise * 0.5)
            else:
                parameter.add_(noise * 0.1)
    return model


def tiny_tokenizer(*, chat_template: bool = False) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of VOCABULARY entries; any text survives encoding and decoding.

    Like Gemma's and Llama's it puts BOS before a prompt.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<bos>", "<eos>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise AssertionError(f"the corpus gives {tokenizer.get_vocab_size()} entries, not {VOCABULARY}")
    tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    special = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    if chat_template:
        fast.chat_template = CHAT_TEMPLATE
    return fast


def save_tiny_model(architecture: str, folder: Path, *, seed: int = 0, chat_template: bool = False) -> Path:
    """Write model (safetensors, float32), tokenizer and generation config into ``folder``; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    model = tiny_model(architecture, seed)
    model.generation_config.eos_token_id = EOS
    model.save_pretrained(folder)
    tiny_tokenizer(chat_template=chat_template).save_pretrained(folder)
    return folder
