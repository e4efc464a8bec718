"""From settings to an engine: the model loaded, its cache sized, and each decision told in a line."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .config import WorkerConfig, parse_size
from .engine.detokenizer import Detokenizer
from .engine.engine import Engine

if TYPE_CHECKING:
    from .model.loader import ModelInfo
    from .preparation import Preparation

_DEFAULT_MODEL_LEN = 32768


@dataclass(frozen=True, slots=True)
class Assembly:
    """What a worker runs, and what it says about it at start, one fact a line."""

    engine: Engine
    preparation: "Preparation"
    served_name: str
    facts: list[str]


@dataclass(frozen=True, slots=True)
class CachePlan:
    """Size of the KV cache and the longest sequence, with the reason for each."""

    num_blocks: int
    memory: int
    max_model_len: int
    facts: list[str]


def served_name(config: WorkerConfig) -> str:
    """The name that requests ask for."""
    if config.served_name is not None:
        return config.served_name
    folder = Path(config.model)
    return folder.resolve().name if folder.is_dir() else config.model


def assemble(config: WorkerConfig) -> Assembly:
    """Load the model and build the engine; takes seconds to minutes.

    Raises:
        headrace.worker.model.errors.UnservableModelError: the model cannot be served, and why.
        ValueError: settings that do not fit the model or the machine, naming the setting.
        OSError: no such model.
    """
    import torch

    from .model.loader import load_model
    from .model.runner import ModelRunner
    from .model.text import TextEncoder
    from .preparation import Preparation

    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    name = served_name(config)
    loaded = load_model(
        config.model, device=device, dtype=config.dtype, trust_remote_code=config.trust_remote_code
    )
    info = loaded.info
    plan = plan_cache(config, info)
    runner = ModelRunner(
        loaded,
        num_blocks=plan.num_blocks,
        block_size=config.block_size,
        max_sequences=config.max_sequences,
        max_model_len=plan.max_model_len,
    )
    engine = Engine(
        runner,
        Detokenizer.of(loaded.tokenizer.backend_tokenizer),
        num_blocks=plan.num_blocks,
        block_size=config.block_size,
        max_batched_tokens=config.max_batched_tokens,
        max_sequences=config.max_sequences,
        max_model_len=plan.max_model_len,
        prefix_caching=config.prefix_caching,
        overlap=info.device.type != "cpu",
    )
    encoder = TextEncoder(
        loaded.tokenizer, model=name, vocab_size=info.vocab_size, max_tokens=plan.max_model_len - 1
    )
    dtype = str(info.dtype).removeprefix("torch.")
    facts = [
        (f"model {name}: {info.architecture}, {info.num_parameters / 1e6:,.0f} M parameters, "
        f"{dtype} on {info.device}"),
        *plan.facts,
        (f"batch: up to {config.max_sequences} sequences and {config.max_batched_tokens} tokens an iteration, "
        f"prefix caching {'on' if config.prefix_caching else 'off'}"),
    ]
    return Assembly(engine, Preparation(encoder, info.eos_ids), name, facts)


def plan_cache(config: WorkerConfig, info: "ModelInfo") -> CachePlan:
    """Decide how many blocks there are and how long a sequence may be.

    Raises:
        ValueError: the settings contradict the model or each other.
    """
    from .model.kv_tensors import block_bytes, blocks_for, default_memory

    block_size = config.block_size
    wanted = config.max_model_len
    if wanted is not None and info.max_positions is not None and wanted > info.max_positions:
        raise ValueError(f"max_model_len: must be at most the model's {info.max_positions}, got {wanted}")
    longest = wanted or info.max_positions or _DEFAULT_MODEL_LEN
    if config.kv_cache_memory is not None:
        memory = parse_size("kv_cache_memory", config.kv_cache_memory)
        why = "as set"
    else:
        memory = default_memory(
            info.kv_layers,
            block_size,
            info.dtype,
            info.device,
            max_sequences=config.max_sequences,
            max_model_len=longest,
        )
        useful = (
            config.max_sequences
            * -(-longest // block_size)
            * block_bytes(info.kv_layers, block_size, info.dtype)
        )
        if memory >= useful:
            why = f"enough for {config.max_sequences} sequences of {longest} tokens"
        else:
            why = "half of the free memory" if info.device.type == "cpu" else "85 % of the free device memory"
    num_blocks = blocks_for(memory, info.kv_layers, block_size, info.dtype)
    capacity = num_blocks * block_size
    if wanted is not None and wanted > capacity:
        raise ValueError(f"max_model_len: must be at most the KV cache's {capacity} tokens, got {wanted}")
    if wanted is not None:
        limit = "as set"
    elif longest > capacity:
        limit = "all of the KV cache"
    else:
        limit = "the model's own"
    max_model_len = min(longest, capacity)
    return CachePlan(
        num_blocks,
        memory,
        max_model_len,
        [
            (f"KV cache: {num_blocks:,} blocks of {block_size} tokens ({capacity:,} tokens, "
            f"{size_text(info.kv_bytes_per_token)} each), {size_text(memory)}: {why}"),
            f"longest sequence: {max_model_len:,} tokens, {limit}",
        ],
    )


def size_text(size: int) -> str:
    """A size as people write it."""
    value = float(size)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"
