"""Tile sizes, warps and stages: one table, by architecture and shape class.

Nothing is tuned while serving. ``python -m benchmarks.tune_kernels`` measures alternatives on a GPU and
prints lines for this table; ``python -m benchmarks.compile_matrix`` shows what each costs in registers and
shared memory.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

import torch

Architecture = Literal["sm_80", "sm_86", "sm_90", "sm_100", "gfx942", "interpreter"]
"""sm_86 stands for every NVIDIA GPU with about 100 KB of shared memory: consumer and workstation cards."""

FP8_CONVERSION: Final = frozenset({"sm_90", "sm_100", "gfx942"})
"""Architectures that convert float8_e4m3fn in hardware; on others, the kernels do it with integer
arithmetic."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Tile of one attention program: rows (queries times heads), keys per step, and pipeline stages (steps
    whose keys are loaded at once)."""

    rows: int
    keys: int
    stages: int


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """Tiles of one launch, which has programs of both kinds and one number of warps for all."""

    prefill: Tile
    """For sequences with several queries: compute-bound, so large."""
    decode: Tile
    """For sequences with one query: bound by memory bandwidth, so deep."""
    warps: int


@dataclass(frozen=True, slots=True)
class Splits:
    """Splits of a decoding sequence's keys over programs."""

    shortest: int
    """Keys of the shortest split, as long as that makes no more than ``most`` splits."""
    most: int


@cache
def architecture(device: torch.device) -> Architecture:
    """The architecture whose table entries serve a device."""
    if device.type != "cuda":
        return "interpreter"
    if torch.version.hip:
        return "gfx942"
    major, minor = torch.cuda.get_device_capability(device)
    named: dict[tuple[int, int], Architecture] = {(8, 0): "sm_80", (9, 0): "sm_90"}
    return named.get((major, minor), "sm_100" if major == 10 else "sm_86")


def splits(arch: Architecture, kv_heads: int) -> Splits:
    """Depends on the model only: were it the batch, a sequence's result would depend on its neighbours."""
    if arch == "interpreter":
        return Splits(shortest=64, most=4)
    # One long sequence alone should give about two programs to each of a GPU's 100 to 300 multiprocessors.
    return Splits(shortest=256, most=min(128, max(16, 256 // kv_heads)))


def attention_tiles(arch: Architecture, head_dim: int, element_bytes: int) -> AttentionTiles:
    """The table's entry; float32 has no tensor cores and small tiles for both."""
    width = 64 if head_dim <= 64 else 128 if head_dim <= 128 else 256
    return (FLOAT32 if element_bytes == 4 else HALF)[arch, width]


HALF: Final[dict[tuple[Architecture, int], AttentionTiles]] = {
    ("sm_80", 64): AttentionTiles(Tile(128, 64, 3), Tile(16, 64, 4), 8),
    ("sm_80", 128): AttentionTiles(Tile(128, 32, 3), Tile(16, 64, 3), 8),
    ("sm_80", 256): AttentionTiles(Tile(64, 32, 2), Tile(16, 32, 3), 8),
    ("sm_86", 64): AttentionTiles(Tile(128, 64, 2), Tile(16, 32, 4), 8),
    ("sm_86", 128): AttentionTiles(Tile(64, 32, 2), Tile(16, 32, 3), 4),
    ("sm_86", 256): AttentionTiles(Tile(64, 32, 2), Tile(16, 32, 2), 8),
    ("sm_90", 64): AttentionTiles(Tile(128, 128, 3), Tile(16, 128, 3), 8),
    ("sm_90", 128): AttentionTiles(Tile(128, 64, 3), Tile(16, 64, 4), 8),
    ("sm_90", 256): AttentionTiles(Tile(128, 32, 3), Tile(16, 32, 3), 8),
    ("sm_100", 64): AttentionTiles(Tile(128, 128, 3), Tile(16, 64, 4), 8),
    ("sm_100", 128): AttentionTiles(Tile(128, 64, 3), Tile(16, 64, 4), 8),
    ("sm_100", 256): AttentionTiles(Tile(128, 32, 3), Tile(16, 32, 3), 8),
    ("gfx942", 64): AttentionTiles(Tile(128, 64, 1), Tile(16, 64, 1), 4),
    ("gfx942", 128): AttentionTiles(Tile(128, 64, 1), Tile(16, 64, 1), 4),
    ("gfx942", 256): AttentionTiles(Tile(64, 32, 1), Tile(16, 32, 1), 4),
    ("interpreter", 64): AttentionTiles(Tile(32, 32, 1), Tile(16, 32, 1), 4),
    ("interpreter", 128): AttentionTiles(Tile(32, 32, 1), Tile(16, 32, 1), 4),
    ("interpreter", 256): AttentionTiles(Tile(32, 32, 1), Tile(16, 32, 1), 4),
}

FLOAT32: Final[dict[tuple[Architecture, int], AttentionTiles]] = {
    ("sm_80", 64): AttentionTiles(Tile(16, 32, 2), Tile(16, 32, 2), 4),
    ("sm_80", 128): AttentionTiles(Tile(16, 32, 2), Tile(16, 32, 2), 4),
    ("sm_80", 256): AttentionTiles(Tile(16, 16, 2), Tile(16, 16, 2), 8),
    ("sm_86", 64): AttentionTiles(Tile(16, 32, 2), Tile(16, 32, 2), 4),
    ("sm_86", 128): AttentionTiles(Tile(16, 16, 2), Tile(16, 16, 2), 4),
    ("sm_86", 256): AttentionTiles(Tile(16, 16, 2), Tile(16, 16, 2), 8),
    ("sm_90", 64): AttentionTiles(Tile(16, 32, 2), Tile(16, 32, 2), 4),
    ("sm_90", 128): AttentionTiles(Tile(16, 32, 2), Tile(16, 32, 2), 4),
    ("sm_90", 256): AttentionTiles(Tile(16, 16, 2), Tile(16, 16, 2), 8),
    ("sm_100", 64): AttentionTiles(Tile(16, 32, 2), Tile(16, 32, 2), 4),
    ("sm_100", 128): AttentionTiles(Tile(16, 32, 2), Tile(16, 32, 2), 4),
    ("sm_100", 256): AttentionTiles(Tile(16, 16, 2), Tile(16, 16, 2), 8),
    ("gfx942", 64): AttentionTiles(Tile(16, 16, 1), Tile(16, 16, 1), 4),
    ("gfx942", 128): AttentionTiles(Tile(16, 16, 1), Tile(16, 16, 1), 4),
    ("gfx942", 256): AttentionTiles(Tile(16, 16, 1), Tile(16, 16, 1), 4),
    ("interpreter", 64): AttentionTiles(Tile(16, 32, 1), Tile(16, 32, 1), 4),
    ("interpreter", 128): AttentionTiles(Tile(16, 32, 1), Tile(16, 32, 1), 4),
    ("interpreter", 256): AttentionTiles(Tile(16, 32, 1), Tile(16, 32, 1), 4),
}
