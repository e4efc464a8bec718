"""Fused norms and gated feed-forward layers, one kernel for their small operations.

Results agree with those of the layers they are made of up to one rounding: where layers round in between,
kernels round once.
"""

import copy
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from ....kernels import Implementation, gelu_tanh_and_mul, rms_norm, silu_and_mul

_ROWS = 3


class FusedNorm(nn.Module):
    """RMSNorm of the last dimension; ``offset`` is added to the weight."""

    def __init__(
        self, weight: nn.Parameter, eps: float, offset: float, implementation: Implementation | None
    ) -> None:
        super().__init__()
        self.weight = weight
        self.eps = eps
        self.offset = offset
        self.implementation: Implementation | None = implementation
        self._ahead: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """[..., n] to [..., n]."""
        if self._ahead is not None:
            (total, normalized), self._ahead = self._ahead, None
            if total is x:
                return normalized
        return rms_norm(x, self.weight, self.eps, offset=self.offset, implementation=self.implementation)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """``residual + x``. If that very tensor is what ``forward`` gets next, it is normalized already."""
        # What a pass that failed left here is let go first.
        self._ahead = None
        normalized, total = rms_norm(
            x,
            self.weight,
            self.eps,
            residual=residual,
            offset=self.offset,
            implementation=self.implementation,
        )
        self._ahead = total, normalized
        return total


class FusedMLP(nn.Module):
    """A gated feed-forward layer with the weights of gate and up in one matrix."""

    def __init__(
        self,
        gate_up: Tensor,
        down: nn.Module,
        activate: Callable[..., Tensor],
        implementation: Implementation | None,
    ) -> None:
        super().__init__()
        self.gate_up = linear_layer(gate_up)
        self.down_proj = down
        self._activate = activate
        self.implementation: Implementation | None = implementation

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] to [..., hidden]."""
        return self.down_proj(self._activate(self.gate_up(x), implementation=self.implementation))


def fused_norm(layer: nn.Module, implementation: Implementation | None) -> FusedNorm | None:
    """The fused norm for ``layer`` if that is an RMSNorm."""
    weight: Any = getattr(layer, "weight", None)
    eps: Any = getattr(layer, "variance_epsilon", getattr(layer, "eps", None))
    if "RMSNorm" not in type(layer).__name__ or not isinstance(weight, nn.Parameter) or weight.dim() != 1:
        return None
    if not isinstance(eps, float):
        return None
    # In float32, where no rounding hides a difference; small numbers show what eps does.
    exact: Any = copy.deepcopy(layer).float()
    x = torch.randn(2 * _ROWS, weight.shape[0], device=weight.device)
    x[_ROWS:] *= eps**0.5
    for offset in (0.0, 1.0):
        if _is_same(exact, FusedNorm(exact.weight, eps, offset, "torch"), x):
            return FusedNorm(weight, eps, offset, implementation)
    return None


def fused_mlp(layer: nn.Module, implementation: Implementation | None) -> FusedMLP | None:
    """The fused layer for ``layer`` if that is a gated feed-forward layer with a known activation."""
    gate, up = getattr(layer, "gate_proj", None), getattr(layer, "up_proj", None)
    down = getattr(layer, "down_proj", None)
    activate = _fused_activation(getattr(layer, "act_fn", None))
    if activate is None or not (is_plain(gate) and is_plain(up) and isinstance(down, nn.Module)):
        return None
    if any(getattr(part, "bias", None) is not None for part in (gate, up)):
        return None
    if gate.weight.shape != up.weight.shape or gate.weight.dtype != up.weight.dtype:
        return None
    gate_up = torch.cat([gate.weight.detach(), up.weight.detach()])
    fused = FusedMLP(gate_up, down, activate, "torch")
    x = torch.randn(_ROWS, gate.in_features, dtype=gate.weight.dtype, device=gate.weight.device)
    if not _is_same(layer, fused, x):
        return None
    fused.implementation = implementation
    return fused


def _fused_activation(function: Any) -> Callable[..., Tensor] | None:
    """The op that activates as ``function`` does. In float32: in bfloat16 many would look the same."""
    if not callable(function):
        return None
    x = torch.linspace(-8, 8, 1001)
    activated = function(x)
    if not isinstance(activated, Tensor) or activated.shape != x.shape:
        return None
    for op, plain in ((silu_and_mul, silu(x)), (gelu_tanh_and_mul, gelu(x, approximate="tanh"))):
        if torch.allclose(activated, plain, atol=1e-6, rtol=1e-6):
            return op
    return None


def linear_layer(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A layer of the weight [out, in] and bias [out]."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


def is_plain(layer: Any) -> TypeGuard[nn.Linear]:
    """Quantized and adapted linear layers are classes of their own."""
    return type(layer) is nn.Linear


def agree(found: Tensor, expected: Tensor, *, roundings: float = 16) -> bool:
    """Whether results differ by no more than some roundings of their dtype, at the scale of each row."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    limits = roundings * torch.finfo(found.dtype).eps * expected.float().abs().amax(-1, keepdim=True)
    return bool(((found.float() - expected.float()).abs() <= limits).all())


@torch.inference_mode()
def _is_same(layer: nn.Module, fused: nn.Module, x: Tensor) -> bool:
    return agree(fused(x), layer(x))
