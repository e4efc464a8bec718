"""Conversion of a Gemma 3 text model from GGUF to safetensors, configuration and tokenizer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import Gemma3TextConfig, GenerationConfig, PreTrainedTokenizerFast

from .gguf_file import GGUFFile

_NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_CONTROL, _USER_DEFINED = 3, 4


def convert(file: GGUFFile, folder: Path, dtype: torch.dtype, progress: Callable[[float], None]) -> None:
    """Write the model in ``file`` to ``folder`` in ``dtype``; ``progress`` gets the share that is done."""
    _convert_config(file.metadata, dtype).save_pretrained(folder)
    GenerationConfig(
        bos_token_id=file.metadata["tokenizer.ggml.bos_token_id"],
        eos_token_id=file.metadata["tokenizer.ggml.eos_token_id"],
        pad_token_id=file.metadata["tokenizer.ggml.padding_token_id"],
    ).save_pretrained(folder)
    weights: dict[str, torch.Tensor] = {}
    for index, (name, values) in enumerate(file.tensors()):
        # Where transformers multiplies by 1 + weight, GGUF stores the sum.
        tensor = torch.from_numpy(values - 1 if name.endswith("norm.weight") else values)
        weights[_rename(name)] = tensor.to(dtype)
        progress(0.5 * (index + 1) / len(file))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    progress(0.6)
    _convert_tokenizer(file.metadata).save_pretrained(folder)
    progress(1.0)


def _rename(name: str) -> str:
    """``blk.3.attn_q.weight`` to ``model.layers.3.self_attn.q_proj.weight``."""
    *layer, stem, suffix = name.split(".")
    prefix = f"model.layers.{layer[1]}" if layer else "model"
    return f"{prefix}.{_NAMES[stem]}.{suffix}"


def _convert_config(metadata: dict[str, Any], dtype: torch.dtype) -> Gemma3TextConfig:
    def value(key: str) -> Any:
        return metadata[f"gemma3.{key}"]

    config = Gemma3TextConfig(
        vocab_size=len(metadata["tokenizer.ggml.tokens"]),
        hidden_size=value("embedding_length"),
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=value("attention.head_count"),
        num_key_value_heads=value("attention.head_count_kv"),
        head_dim=value("attention.key_length"),
        query_pre_attn_scalar=value("attention.key_length"),
        max_position_embeddings=value("context_length"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        sliding_window=value("attention.sliding_window"),
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": value("rope.freq_base")},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
        bos_token_id=metadata["tokenizer.ggml.bos_token_id"],
        eos_token_id=metadata["tokenizer.ggml.eos_token_id"],
        pad_token_id=metadata["tokenizer.ggml.padding_token_id"],
        tie_word_embeddings=True,
    )
    config.architectures = ["Gemma3ForCausalLM"]
    config.dtype = dtype
    return config


def _convert_tokenizer(metadata: dict[str, Any]) -> PreTrainedTokenizerFast:
    """Byte-fallback BPE over spaces written as ``▁``, BOS before each text."""
    texts: list[str] = metadata["tokenizer.ggml.tokens"]
    kinds: list[int] = metadata["tokenizer.ggml.token_type"]
    vocabulary = {text.replace(" ", "▁"): token for token, text in enumerate(texts)}
    merges = [
        (text[:at], text[at:])
        for text, token in vocabulary.items()
        if kinds[token] != _CONTROL
        # The merge with the longest left part goes first.
        for at in range(len(text) - 1, 0, -1)
        if text[:at] in vocabulary and text[at:] in vocabulary
    ]
    bos, eos, unknown, padding = (
        texts[metadata[f"tokenizer.ggml.{name}_token_id"]] for name in ("bos", "eos", "unknown", "padding")
    )
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, fuse_unk=True, unk_token=unknown, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A",
        pair=f"{bos} $A {bos}:1 $B:1",
        special_tokens=[(bos, vocabulary[bos])],
    )
    tokenizer.add_tokens(
        [
            AddedToken(text, normalized=False, special=kind == _CONTROL)
            for text, kind in zip(texts, kinds, strict=True)
            if kind == _CONTROL or (kind == _USER_DEFINED and " " not in text)
        ]
    )
    special = {"bos_token": bos, "eos_token": eos, "unk_token": unknown, "pad_token": padding}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
