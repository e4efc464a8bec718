"""Tensors of the paged KV cache: bytes of a block, blocks that fit, and allocation."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor


def cache_dtype(name: str, model_dtype: torch.dtype) -> torch.dtype:
    """The dtype that ``auto`` (the model's) or ``fp8`` means.

    Raises:
        ValueError: an unknown name.
    """
    if name not in ("auto", "fp8"):
        raise ValueError(f"kv_cache_dtype: must be auto or fp8, got {name}")
    return model_dtype if name == "auto" else torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class KVLayer:
    """KV heads of one attention layer: K and V of ``num_heads`` x ``head_dim`` each."""

    num_heads: int
    head_dim: int

    @property
    def values_per_token(self) -> int:
        return 2 * self.num_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class KVTensors:
    """K and V of each layer, [num_blocks, num_heads, block_size, head_dim]."""

    keys: list[Tensor]
    values: list[Tensor]
    key_scales: list[Tensor] | None = None
    """Of a float8 cache, float32 [num_heads] of each layer: what is stored times this is the key."""
    value_scales: list[Tensor] | None = None

    def scales(self, layer: int) -> tuple[Tensor | None, Tensor | None]:
        """What a layer's stored keys and values are to be multiplied with; None for nothing."""
        return (
            None if self.key_scales is None else self.key_scales[layer],
            None if self.value_scales is None else self.value_scales[layer],
        )

    @property
    def num_blocks(self) -> int:
        return self.keys[0].shape[0]

    @property
    def block_size(self) -> int:
        return self.keys[0].shape[2]


def block_bytes(layers: Sequence[KVLayer], block_size: int, dtype: torch.dtype) -> int:
    """Bytes that one block takes over all layers."""
    return block_size * dtype.itemsize * sum(layer.values_per_token for layer in layers)


def blocks_for(memory: int, layers: Sequence[KVLayer], block_size: int, dtype: torch.dtype) -> int:
    """Blocks that fit into ``memory`` bytes.

    Raises:
        ValueError: not even one does.
    """
    size = block_bytes(layers, block_size, dtype)
    if memory < size:
        raise ValueError(f"kv_cache_memory: must be at least {size} bytes, one block, got {memory}")
    return memory // size


def bytes_per_token(layers: Sequence[KVLayer], dtype: torch.dtype) -> int:
    """Bytes that one token takes over all layers."""
    return block_bytes(layers, 1, dtype)


def allocate(
    layers: Sequence[KVLayer], num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> KVTensors:
    """All blocks, zeroed: on the CPU, pages are taken from the system as they are first written."""

    def tensors() -> list[Tensor]:
        return [
            torch.zeros(num_blocks, layer.num_heads, block_size, layer.head_dim, dtype=dtype, device=device)
            for layer in layers
        ]

    return KVTensors(tensors(), tensors())


def available_ram() -> int:
    """Bytes a process could take without swapping: the kernel's estimate, within the container's limit."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        available = int(fields["MemAvailable"].split()[0]) * 1024
    group = Path("/sys/fs/cgroup")
    limit, used = group / "memory.max", group / "memory.current"
    if limit.exists() and (bound := limit.read_text().strip()) != "max":
        available = min(available, max(0, int(bound) - int(used.read_text())))
    return available
