"""Passes over a loaded model on a GPU: layers whose small operations become one kernel.

A layer is replaced only where its own forward pass, on random inputs, gives what the fused one gives; so a
model with a norm or an activation of another kind keeps it. Results agree up to one rounding: where layers
round in between, kernels round once.
"""

import copy
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from ...kernels import Implementation, gelu_tanh_and_mul, rms_norm, silu_and_mul

_ROWS = 3


class FusedNorm(nn.Module):
    """RMSNorm of the last dimension; ``offset`` is added to the weight."""

    def __init__(
        self, weight: nn.Parameter, eps: float, offset: float, implementation: Implementation | None
    ) -> None:
        super().__init__()
        self.weight = weight
        self._eps = eps
        self._offset = offset
        self._implementation: Implementation | None = implementation

    def forward(self, x: Tensor) -> Tensor:
        """[..., n] to [..., n]."""
        return rms_norm(x, self.weight, self._eps, offset=self._offset, implementation=self._implementation)


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
        self.gate_up = nn.Parameter(gate_up, requires_grad=False)
        self.down_proj = down
        self._activate = activate
        self._implementation: Implementation | None = implementation

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] to [..., hidden]."""
        gate_up = nn.functional.linear(x, self.gate_up)
        return self.down_proj(self._activate(gate_up, implementation=self._implementation))


def fuse_layers(model: nn.Module, implementation: Implementation | None = None) -> tuple[int, int]:
    """Replace norms and gated feed-forward layers where that is the same; how many of each were."""
    norms = mlps = 0
    # Level by level: a list of all modules would keep the weights of those that are replaced.
    for name, child in list(model.named_children()):
        if (norm := _fused_norm(child, implementation)) is not None:
            setattr(model, name, norm)
            norms += 1
        elif (mlp := _fused_mlp(child, implementation)) is not None:
            setattr(model, name, mlp)
            mlps += 1
        else:
            more_norms, more_mlps = fuse_layers(child, implementation)
            norms, mlps = norms + more_norms, mlps + more_mlps
    return norms, mlps


def _fused_norm(layer: Any, implementation: Implementation | None) -> FusedNorm | None:
    weight = getattr(layer, "weight", None)
    eps = getattr(layer, "variance_epsilon", getattr(layer, "eps", None))
    if "RMSNorm" not in type(layer).__name__ or not isinstance(weight, nn.Parameter) or weight.dim() != 1:
        return None
    if not isinstance(eps, float):
        return None
    # In float32, where no rounding hides a difference; small numbers show what eps does.
    exact = copy.deepcopy(layer).float()
    x = torch.randn(2 * _ROWS, weight.shape[0], device=weight.device)
    x[_ROWS:] *= eps**0.5
    for offset in (0.0, 1.0):
        if _is_same(exact, FusedNorm(exact.weight, eps, offset, implementation), x):
            return FusedNorm(weight, eps, offset, implementation)
    return None


def _fused_mlp(layer: Any, implementation: Implementation | None) -> FusedMLP | None:
    gate, up = getattr(layer, "gate_proj", None), getattr(layer, "up_proj", None)
    down = getattr(layer, "down_proj", None)
    activate = _fused_activation(getattr(layer, "act_fn", None))
    if activate is None or not (_is_plain(gate) and _is_plain(up) and isinstance(down, nn.Module)):
        return None
    if gate.weight.shape != up.weight.shape or gate.weight.dtype != up.weight.dtype:
        return None
    gate_up = torch.cat([gate.weight.detach(), up.weight.detach()])
    fused = FusedMLP(gate_up, down, activate, implementation)
    x = torch.randn(_ROWS, gate.in_features, dtype=gate.weight.dtype, device=gate.weight.device)
    return fused if _is_same(layer, fused, x) else None


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


def _is_plain(layer: Any) -> TypeGuard[nn.Linear]:
    """Quantized and adapted layers are classes of their own."""
    return type(layer) is nn.Linear and getattr(layer, "bias", None) is None


@torch.inference_mode()
def _is_same(layer: nn.Module, fused: nn.Module, x: Tensor) -> bool:
    expected, found = layer(x).float(), fused(x).float()
    # Some roundings of the dtype, at the scale of each row.
    limits = 16 * torch.finfo(x.dtype).eps * expected.abs().amax(-1, keepdim=True)
    return bool(((found - expected).abs() <= limits).all())
