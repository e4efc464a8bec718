"""Gated activations in Triton: elementwise, one program per piece of a row."""

# Kernels are written in Triton's language; their parameters have no Python types.
# pyright: reportMissingParameterType=false

import triton
import triton.language as tl
from torch import Tensor

from ..launch import Launch, run

PIECE = 1024


@triton.jit
def activation_kernel(gate_up, out, SIZE: tl.constexpr, PIECE: tl.constexpr, GELU: tl.constexpr):
    """Program (row, piece); gate_up [rows, 2 * SIZE] and out [rows, SIZE] contiguous."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * PIECE + tl.arange(0, PIECE)
    mask = column < SIZE
    gate = tl.load(gate_up + row * 2 * SIZE + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * SIZE + SIZE + column, mask=mask, other=0.0).to(tl.float32)
    if GELU:
        # 0.5 * (1 + tanh(y)) is sigmoid(2 * y).
        gate = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    else:
        gate = gate * tl.sigmoid(gate)
    tl.store(out + row * SIZE + column, (gate * up).to(out.dtype.element_ty), mask=mask)


def activate(gate_up: Tensor, kind: str) -> Tensor:
    """See ``silu_and_mul``."""
    gate_up = gate_up.contiguous()
    out = gate_up.new_empty((*gate_up.shape[:-1], gate_up.shape[-1] // 2))
    run(plan(gate_up, kind, out))
    return out


def plan(gate_up: Tensor, kind: str, out: Tensor) -> list[Launch]:
    """The launches of one call; tensors contiguous."""
    size = out.shape[-1]
    if not out.numel():
        return []
    arguments = {"gate_up": gate_up, "out": out, "SIZE": size, "PIECE": PIECE, "GELU": kind == "gelu"}
    return [Launch(activation_kernel, (out.numel() // size, -(-size // PIECE)), arguments, num_warps=4)]
