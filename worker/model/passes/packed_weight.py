"""Packed weights: matrices laid out for products with few rows, as in decoding, on the CPU."""

import math
import platform
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor

_TYPICAL_ROWS: Final = 16
"""oneDNN's layout depends on the number of rows; this one is good from 1 to some hundreds."""
_PIECE: Final = 32832
"""Columns of the result at a time: FBGEMM adds to them in several passes, between which they should stay in
the cache, and rows a power of two apart would take each other's places there. Each piece is copied."""
_EXACT: Final = 2.0**-26
"""What storing a weight may change, over the largest weight of its row: a quarter of float32's rounding."""


class PackedWeight(Protocol):
    """A matrix [out, in] that rows are multiplied with."""

    def multiply(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        """float32 or bfloat16 rows [n, in], n > 0, to ``rows @ weight.T + bias``, [n, out]."""
        ...


@dataclass(frozen=True, slots=True)
class HalfWeight:
    """A float32 matrix whose weights fit into float16, kept so and widened as they are multiplied (FBGEMM).

    Checkpoints are in bfloat16 or float16: nothing is lost, half as much is read.
    """

    pieces: list[Any]
    out_features: int
    scale: float
    """A power of two: the weights are those stored, times this."""

    def multiply(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        if self.scale != 1:
            rows = rows * self.scale
        if len(self.pieces) == 1:
            result: Tensor = torch.ops.quantized.linear_dynamic_fp16(rows, self.pieces[0])
        else:
            result = rows.new_empty(len(rows), self.out_features)
            for index, piece in enumerate(self.pieces):
                part: Tensor = torch.ops.quantized.linear_dynamic_fp16(rows, piece)
                result[:, index * _PIECE : index * _PIECE + part.shape[1]] = part
        return result if bias is None else result.add_(bias)


@dataclass(frozen=True, slots=True)
class OneDnnWeight:
    """A matrix in the layout of oneDNN."""

    packed: Tensor

    def multiply(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(rows, self.packed, bias, "none", [], "")


def pack(weight: Tensor) -> PackedWeight | None:
    """A packed copy of ``weight`` [out, in], or None where that cannot be or would not be faster."""
    if weight.device.type != "cpu" or platform.machine() not in ("x86_64", "AMD64"):
        return None
    if weight.dtype == torch.float32 and (half := _pack_half(weight)) is not None:
        return half
    if not torch.backends.mkldnn.is_available():
        return None
    if weight.dtype != torch.float32 and not (
        weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    ):
        return None
    return OneDnnWeight(torch.ops.mkldnn._reorder_linear_weight(weight, _TYPICAL_ROWS))


def _pack_half(weight: Tensor) -> HalfWeight | None:
    if "fbgemm" not in torch.backends.quantized.supported_engines or not weight.numel():
        return None
    # The larger the stored numbers, the fewer of the small ones fall short of float16's range.
    low, high = weight.aminmax()
    _, exponent = math.frexp(max(-float(low), float(high)))
    for power in (1.0, 2.0 ** (15 - exponent)):
        pieces = (weight if power == 1 else weight * power).split(_PIECE)
        if all(_fits(piece) for piece in pieces):
            # Each takes one thread.
            with ThreadPoolExecutor(torch.get_num_threads()) as pool:
                packed = list(pool.map(_prepack, pieces))
            return HalfWeight(packed, weight.shape[0], 1 / power)
    return None


def _prepack(weight: Tensor) -> Any:
    return torch.ops.quantized.linear_prepack_fp16(weight, None)


def _fits(weight: Tensor) -> bool:
    stored = weight.half().float()
    # What nothing is lost of is found out thirty times as fast.
    if torch.equal(stored, weight):
        return True
    return bool(((stored - weight).abs() <= weight.abs().amax(1, keepdim=True) * _EXACT).all())
