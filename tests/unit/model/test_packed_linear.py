"""Packing linear layers changes how fast they are, not what they compute."""

import pytest
import torch
from tiny_models import ARCHITECTURES, tiny_model
from torch import nn

from headrace.worker.model.packed_linear import PackedLinear, pack_linear_layers


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 16, 100])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer(rows: int, bias: bool) -> None:
    linear = nn.Linear(70, 130, bias=bias)
    x = torch.randn(1, rows, 70)
    with torch.inference_mode():
        exact = nn.functional.linear(
            x.double(), linear.weight.double(), linear.bias.double() if bias else None
        )
        packed = PackedLinear(linear)(x)
    assert packed.shape == (1, rows, 130)
    torch.testing.assert_close(packed, exact.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model(architecture: str) -> None:
    plain, packed = tiny_model(architecture), tiny_model(architecture)
    assert pack_linear_layers(packed) > 7 * 2 - 1
    assert not any(type(module) is nn.Linear for module in packed.modules())
    tokens = torch.randint(3, 384, (1, 20))
    with torch.inference_mode():
        torch.testing.assert_close(packed(tokens).logits, plain(tokens).logits, rtol=1e-3, atol=1e-3)


def test_other_dtypes_are_left_alone() -> None:
    model = tiny_model("llama").half()
    assert pack_linear_layers(model) == 0
