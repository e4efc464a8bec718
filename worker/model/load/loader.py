"""Model loader: a folder or hub id to a model on its device, its tokenizer and its properties."""

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from ..errors import UnservableModelError
from ..passes.fusion import Fused, fuse_layers
from ..passes.packed_linear import pack_linear_layers
from ..run.attention import ATTENTION_NAME
from ..run.kv_tensors import KVLayer
from .servable import check_class, check_config, probe_layers

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Properties of a loaded model."""

    name: str
    architecture: str
    num_parameters: int
    dtype: torch.dtype
    device: torch.device
    kv_layers: tuple[KVLayer, ...]
    vocab_size: int
    """Rows of the embedding: every token id is below."""
    max_positions: int | None
    """Longest sequence it can be served for; None if it does not say."""
    eos_ids: frozenset[int]
    has_chat_template: bool


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    info: ModelInfo
    fused: Fused | None = None
    """Which layers became fewer operations, where that was tried."""


def resolve_dtype(name: str, device: torch.device, config: PreTrainedConfig) -> torch.dtype:
    """The dtype that ``name`` (float32, bfloat16, float16 or auto) means.

    ``auto`` is what the checkpoint is stored in on a GPU, and float32 on a CPU: without bfloat16 arithmetic
    in hardware that is both exact and the faster one.

    Raises:
        ValueError: an unknown name.
    """
    if name == "auto":
        stored = getattr(config.get_text_config(), "dtype", None) or getattr(config, "dtype", None)
        if device.type == "cpu" or not isinstance(stored, torch.dtype):
            return torch.float32
        return stored
    if name not in DTYPES:
        raise ValueError(f"dtype: must be auto or one of {', '.join(DTYPES)}, got {name}")
    return DTYPES[name]


def load_model(
    source: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: str = "auto",
    trust_remote_code: bool = False,
    passes: bool = True,
) -> LoadedModel:
    """Load a causal language model from a folder or the hub, with attention connected to nothing yet.

    ``passes`` lets layers be replaced by faster ones, equal up to rounding: by such of fewer operations and,
    on a CPU, with packed weights.

    Raises:
        UnservableModelError: the architecture cannot run over a paged cache, or there is no fast tokenizer.
        OSError: no such folder or hub id.
        ValueError: an unknown dtype.
    """
    source, device = str(source), torch.device(device)
    config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
    check_config(source, config)
    tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UnservableModelError(source, f"has no fast tokenizer, only {type(tokenizer).__name__}")
    # With accelerate, weights go to the device one by one instead of through a whole copy in host memory.
    direct = device.type != "cpu" and importlib.util.find_spec("accelerate") is not None
    model = AutoModelForCausalLM.from_pretrained(
        source,
        dtype=resolve_dtype(dtype, device, config),
        attn_implementation=ATTENTION_NAME,
        trust_remote_code=trust_remote_code,
        device_map=device if direct else None,
    )
    if not direct:
        nn.Module.to(model, device)
    loaded = prepare(source, model, tokenizer)
    if not passes:
        return loaded
    fused = fuse_layers(model)
    # The fused layers' as well.
    pack_linear_layers(model)
    return replace(loaded, fused=fused)


def prepare(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> LoadedModel:
    """Check a model that is on its device, and find out what its layers keep in the cache.

    Raises:
        UnservableModelError: the architecture cannot run over a paged cache.
    """
    check_config(name, model.config)
    check_class(name, type(model))
    model.eval().requires_grad_(False)
    config = model.config.get_text_config()
    info = ModelInfo(
        name=name,
        architecture=type(model).__name__,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        dtype=model.dtype,
        device=model.device,
        kv_layers=probe_layers(name, model),
        vocab_size=_embedding_rows(name, model),
        max_positions=_max_positions(config),
        eos_ids=_eos_ids(model, tokenizer),
        has_chat_template=tokenizer.chat_template is not None,
    )
    return LoadedModel(model, tokenizer, info)


def _embedding_rows(name: str, model: PreTrainedModel) -> int:
    embedding = model.get_input_embeddings()
    if not isinstance(embedding, nn.Embedding):
        raise UnservableModelError(name, "has no embedding of token ids")
    return embedding.num_embeddings


def _max_positions(config: PreTrainedConfig) -> int | None:
    # These two rotate by other frequencies once any sequence of the batch is longer than the original length,
    # which would let neighbours change each other's output.
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("longrope", "dynamic"):
        for source in (rope, config.to_dict()):
            if original := source.get("original_max_position_embeddings"):
                return original
    return getattr(config, "max_position_embeddings", None)


def _eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    ids: set[int] = set()
    sources = (model.generation_config, model.config, model.config.get_text_config(), tokenizer)
    for source in sources:
        found: int | Iterable[int] | None = getattr(source, "eos_token_id", None)
        if isinstance(found, int):
            ids.add(found)
        elif found is not None:
            ids.update(found)
    return frozenset(ids)
