"""RMSNorm in Triton: each program has several whole rows in registers and reads them once."""

# Kernels are written in Triton's language; their parameters have no Python types.
# pyright: reportMissingParameterType=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import Launch, run

ELEMENTS = 4096
"""Elements of a program, about, rows permitting."""


@triton.jit(do_not_specialize=["rows"])
def rms_norm_kernel(
    x,
    residual,
    weight,
    out,
    summed,
    eps,
    offset,
    rows,
    SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Program (tile of rows,); all tensors contiguous [rows, SIZE]."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, PADDED_SIZE)
    mask = (row < rows)[:, None] & (column < SIZE)[None, :]
    place = row[:, None] * SIZE + column[None, :]
    values = tl.load(x + place, mask=mask, other=0.0)
    if residual is not None:
        values = values + tl.load(residual + place, mask=mask, other=0.0)
        tl.store(summed + place, values, mask=mask)
    wide = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 1) / SIZE + eps)
    factor = offset + tl.load(weight + column, mask=column < SIZE, other=0.0).to(tl.float32)
    normalized = wide * scale[:, None] * factor[None, :]
    tl.store(out + place, normalized.to(out.dtype.element_ty), mask=mask)


def normalize(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None, offset: float
) -> Tensor | tuple[Tensor, Tensor]:
    """See ``rms_norm``."""
    x = x.contiguous()
    out = torch.empty_like(x)
    summed = None if residual is None else torch.empty_like(x)
    run(
        plan(
            x,
            weight.contiguous(),
            eps,
            None if residual is None else residual.contiguous(),
            offset,
            out,
            summed,
        )
    )
    return out if summed is None else (out, summed)


def plan(
    x: Tensor,
    weight: Tensor,
    eps: float,
    residual: Tensor | None,
    offset: float,
    out: Tensor,
    summed: Tensor | None,
) -> list[Launch]:
    """The launches of one call of ``rms_norm``; tensors contiguous."""
    size = x.shape[-1]
    rows = x.numel() // size
    if not rows:
        return []
    padded = triton.next_power_of_2(size)
    # Independent of the number of rows: the order of a row's sum must not depend on the others.
    rows_at_once = max(1, min(16, ELEMENTS // padded)) if padded <= 512 else 1
    arguments = {
        "x": x,
        "residual": residual,
        "weight": weight,
        "out": out,
        "summed": summed,
        "eps": eps,
        "offset": offset,
        "rows": rows,
        "SIZE": size,
        "PADDED_SIZE": padded,
        "ROWS": rows_at_once,
    }
    warps = max(4, min(16, padded // 1024))
    return [Launch(rms_norm_kernel, (-(-rows // rows_at_once),), arguments, num_warps=warps)]
