"""Packing linear layers changes how fast they are, not what they compute."""

import pytest
import torch
from tiny_models import ARCHITECTURES, tiny_model
from torch import Tensor, nn

from headrace.worker.model.passes.packed_linear import pack_linear_layers
from headrace.worker.model.passes.packed_weight import HalfWeight, OneDnnWeight, pack


def assert_multiplies_as(weight: Tensor, rows: int, *, bias: bool) -> None:
    """Within float32's rounding of a sum that long."""
    packed = pack(weight)
    assert packed is not None
    x = torch.randn(rows, weight.shape[1])
    added = torch.randn(weight.shape[0]) if bias else None
    exact = x.double() @ weight.double().T
    size = float((x.double().abs() @ weight.double().abs().T).max())
    if added is not None:
        exact += added.double()
        size += float(added.abs().max())
    torch.testing.assert_close(packed.multiply(x, added).double(), exact, rtol=0, atol=size * 1e-6)


@pytest.mark.parametrize("rows", [1, 2, 7, 16, 100])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("size", [1.0, 1e-6, 1e6])
def test_what_checkpoints_store(rows: int, bias: bool, stored: torch.dtype, size: float) -> None:
    """Numbers of any size: in bfloat16 they go far beyond float16's range."""
    size = min(size, 100.0) if stored == torch.float16 else size
    weight = (torch.randn(130, 70) * size).to(stored).float()
    assert isinstance(pack(weight), OneDnnWeight if stored == torch.float32 else HalfWeight)
    assert_multiplies_as(weight, rows, bias=bias)


def test_one_weight_that_float16_cannot_hold_keeps_the_matrix_in_float32() -> None:
    weight = torch.randn(130, 70).bfloat16().float()
    weight[77, 5] = 1 + 2**-20
    assert isinstance(pack(weight), OneDnnWeight)
    assert_multiplies_as(weight, 5, bias=False)


def test_a_row_of_small_weights_is_not_lost_beside_large_ones() -> None:
    weight = torch.randn(130, 70).bfloat16().float()
    weight[77] *= 2.0**-40
    assert isinstance(pack(weight), OneDnnWeight)


@pytest.mark.parametrize("rows", [1, 9])
def test_a_vocabulary_in_several_pieces(rows: int) -> None:
    assert_multiplies_as(torch.randn(20_000, 24).bfloat16().float(), rows, bias=True)


def test_zeros_and_nothing() -> None:
    assert_multiplies_as(torch.zeros(30, 20), 3, bias=True)
    layer = nn.Sequential(nn.Linear(20, 30))
    assert pack_linear_layers(layer) == 1
    assert layer(torch.empty(1, 0, 20)).shape == (1, 0, 30)
    assert layer(torch.empty(1, 4, 20)).shape == (1, 4, 30)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model(architecture: str, dtype: torch.dtype) -> None:
    """Whose weights were in that dtype when they were stored."""
    plain, packed = (tiny_model(architecture).to(dtype).float() for _ in range(2))
    assert pack_linear_layers(packed) > 7 * 2 - 1
    assert not any(type(module) is nn.Linear for module in packed.modules())
    tokens = torch.randint(3, 384, (1, 20))
    with torch.inference_mode():
        torch.testing.assert_close(packed(tokens).logits, plain(tokens).logits, rtol=1e-3, atol=1e-3)


def test_other_dtypes_are_left_alone() -> None:
    model = tiny_model("llama").half()
    assert pack_linear_layers(model) == 0
