"""A pass over a model on the CPU: linear layers with their weights laid out for oneDNN.

Decoding multiplies few rows with large matrices. There ``F.linear`` in float32 takes about twice as long as
oneDNN with a weight that was reordered once (65536 x 640, one thread: 72 ms against 30 at 8 rows, 103 against
54 at 32, no difference at 1). Sums are added up in another order, so results agree to float32's rounding.
"""

import platform

import torch
from torch import Tensor, nn

_TYPICAL_ROWS = 16
"""The layout depends on the number of rows; this one is good from 1 to some hundreds."""


class PackedLinear(nn.Module):
    """Computes what ``linear`` computes; keeps a packed copy of its weight, and not the weight itself."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias = linear.bias
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _TYPICAL_ROWS)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        if not x.numel():
            return x.new_empty(*x.shape[:-1], self.out_features)
        rows = x.reshape(-1, self.in_features)
        result: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self.bias, "none", [], "")
        return result.view(*x.shape[:-1], self.out_features)


def pack_linear_layers(model: nn.Module) -> int:
    """Replace the linear layers of ``model`` where packing is supported; how many were.

    A weight shared with the embedding stays there too, so that packing it takes its size in memory again.
    """
    if platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available():
        return 0
    packed = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and _is_packable(child.weight):
                setattr(parent, name, PackedLinear(child))
                packed += 1
    return packed


def _is_packable(weight: Tensor) -> bool:
    if weight.dtype == torch.bfloat16:
        return weight.device.type == "cpu" and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.device.type == "cpu" and weight.dtype == torch.float32
