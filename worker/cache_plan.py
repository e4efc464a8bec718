"""How many blocks the KV cache has and how long a sequence may be, each with its reason."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .config import WorkerConfig, parse_size

if TYPE_CHECKING:
    import torch

    from .model.load.loader import LoadedModel, ModelInfo
    from .model.run.device_memory import DeviceMemory

_DEFAULT_MODEL_LEN = 32768


@dataclass(frozen=True, slots=True)
class CachePlan:
    """Size of the KV cache and the longest sequence, with the reason for each."""

    num_blocks: int
    memory: int
    dtype: "torch.dtype"
    max_model_len: int
    facts: list[str]


def plan_cache(config: WorkerConfig, loaded: "LoadedModel") -> CachePlan:
    """Decide how many blocks there are and how long a sequence may be. On a GPU, by trying what a step takes.

    Raises:
        ValueError: the settings contradict the model, the device or each other.
    """
    from .model.run.kv_tensors import blocks_for, bytes_per_token, cache_dtype

    info = loaded.info
    dtype = cache_dtype(config.kv_cache_dtype, info.dtype)
    block_size = config.block_size
    wanted = config.max_model_len
    if wanted is not None and info.max_positions is not None and wanted > info.max_positions:
        raise ValueError(f"max_model_len: must be at most the model's {info.max_positions}, got {wanted}")
    longest = wanted or info.max_positions or _DEFAULT_MODEL_LEN
    if config.kv_cache_memory is not None:
        memory, why = parse_size("kv_cache_memory", config.kv_cache_memory), "as set"
    elif info.device.type == "cpu":
        memory, why = _on_cpu(config, info, longest)
    else:
        memory, why = _on_gpu(config, loaded, longest)
    num_blocks = blocks_for(memory, info.kv_layers, block_size, dtype)
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
    cache = (
        f"KV cache: {num_blocks:,} blocks of {block_size} tokens ({capacity:,} tokens, "
        f"{size_text(bytes_per_token(info.kv_layers, dtype))} each, {_dtype_text(dtype)}), "
        f"{size_text(memory)}: {why}"
    )
    return CachePlan(
        num_blocks,
        memory,
        dtype,
        max_model_len,
        [cache, f"longest sequence: {max_model_len:,} tokens, {limit}"],
    )


def _on_cpu(config: WorkerConfig, info: "ModelInfo", longest: int) -> tuple[int, str]:
    from .model.run.kv_tensors import available_ram

    return _no_more_than_useful(config, info, longest, available_ram() // 2, "half of the free memory")


def _on_gpu(config: WorkerConfig, loaded: "LoadedModel", longest: int) -> tuple[int, str]:
    from .model.run.device_memory import measure

    device_memory = measure(
        loaded,
        max_batched_tokens=config.max_batched_tokens,
        max_sequences=config.max_sequences,
        max_model_len=longest,
        block_size=config.block_size,
        graphs=config.graphs,
    )
    left = device_memory.left(config.gpu_memory_utilization)
    why = memory_text(device_memory, config.gpu_memory_utilization)
    return _no_more_than_useful(config, loaded.info, longest, left, why)


def memory_text(memory: "DeviceMemory", utilization: float) -> str:
    """Why the cache is as large as it is."""
    return (
        f"{utilization:.0%} of the device's {size_text(memory.total)}, less {size_text(memory.used)} in use "
        f"and {size_text(memory.iteration)} for an iteration"
    )


def _no_more_than_useful(
    config: WorkerConfig, info: "ModelInfo", longest: int, memory: int, why: str
) -> tuple[int, str]:
    from .model.run.kv_tensors import block_bytes, cache_dtype

    dtype = cache_dtype(config.kv_cache_dtype, info.dtype)
    blocks = config.max_sequences * -(-longest // config.block_size)
    useful = blocks * block_bytes(info.kv_layers, config.block_size, dtype)
    if memory >= useful:
        return useful, f"enough for {config.max_sequences} sequences of {longest} tokens"
    return memory, why


def _dtype_text(dtype: "torch.dtype") -> str:
    name = str(dtype).removeprefix("torch.")
    return f"{name}, scales measured" if name.startswith("float8") else name


def size_text(size: int) -> str:
    """A size as people write it."""
    value = float(size)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"
