"""A kernel launch as a value.

Each Triton op first plans its launches from the shapes and dtypes of its arguments, then runs them. Planning
works on tensors without storage, so a launch can be compiled for a GPU on a machine that has none.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

FUSE_MULTIPLY_ADD: Final = True
"""Passed with each launch, since Triton's default changes with its version."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a ``triton.jit`` function."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    """Every parameter of the kernel by name: tensors, numbers, None, and its constexprs."""
    num_warps: int = 4
    num_stages: int = 1


def run(launches: Iterable[Launch]) -> None:
    """Launch in order, on the current stream."""
    for launch in launches:
        launch.kernel[launch.grid](
            **launch.arguments,
            num_warps=launch.num_warps,
            num_stages=launch.num_stages,
            enable_fp_fusion=FUSE_MULTIPLY_ADD,
        )
