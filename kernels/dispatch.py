"""Choice of an op's implementation for a tensor."""

import os
from importlib.util import find_spec
from typing import Final, Literal

from torch import Tensor

Implementation = Literal["torch", "triton"]

IMPLEMENTATIONS: Final = ("torch", "triton")


def choose(tensor: Tensor, implementation: Implementation | None) -> Implementation:
    """The implementation to run on ``tensor``: the given one, else Triton on a GPU and torch elsewhere.

    Raises ``ValueError`` for an unknown name and ``RuntimeError`` where Triton was asked for and cannot run.
    """
    if implementation is None:
        # torch calls AMD's GPUs "cuda" as well.
        return "triton" if tensor.is_cuda and find_spec("triton") else "torch"
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation: {implementation!r} is none of {', '.join(IMPLEMENTATIONS)}")
    if implementation == "triton":
        if find_spec("triton") is None:
            raise RuntimeError("implementation: triton is not installed")
        if tensor.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
            raise RuntimeError(
                "implementation: Triton kernels run on CPU tensors only in its interpreter; "
                "set TRITON_INTERPRET=1 before the first use of a kernel"
            )
    return implementation
