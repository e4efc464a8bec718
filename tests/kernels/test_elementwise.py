"""RMSNorm and gated activations against float64."""

import pytest
import torch
from attention_cases import relative_error

from headrace.kernels import Implementation, gelu_tanh_and_mul, rms_norm, silu_and_mul

BOTH = pytest.mark.parametrize("implementation", ["torch", "triton"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
LIMITS = {torch.float32: 1e-5, torch.float16: 2e-3}
"""Of the largest difference over the largest value. A small result may be the rest of larger numbers: GELU's
``1 + tanh`` of a gate far below zero is all rounding."""


def normalized(x: torch.Tensor, weight: torch.Tensor, offset: float) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * (offset + weight.double())


@BOTH
@DTYPES
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("shape", [(3, 640), (5, 3, 80), (1, 1), (17, 33)])
def test_rms_norm(
    implementation: Implementation, dtype: torch.dtype, offset: float, shape: tuple[int, ...]
) -> None:
    x, weight = (torch.randn(shape) * 5).to(dtype), torch.randn(shape[-1]).to(dtype)
    result = rms_norm(x, weight, 1e-6, offset=offset, implementation=implementation)
    assert result.dtype == dtype
    assert relative_error(result, normalized(x, weight, offset)) < LIMITS[dtype]


@BOTH
@DTYPES
def test_rms_norm_adds_the_residual_first(implementation: Implementation, dtype: torch.dtype) -> None:
    packed = torch.randn(4, 100).to(dtype)
    x, residual, weight = packed[:, :50], torch.randn(4, 50).to(dtype), torch.randn(50).to(dtype)
    result, summed = rms_norm(x, weight, 1e-6, residual=residual, implementation=implementation)
    assert torch.equal(summed, x + residual)
    assert relative_error(result, normalized(summed, weight, 0.0)) < LIMITS[dtype]


@BOTH
@DTYPES
@pytest.mark.parametrize("shape", [(3, 2200), (2, 5, 14)])
@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # to infinity, of which the inverse is 0
def test_gated_activations(
    implementation: Implementation, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    x = (torch.randn(shape) * 4).to(dtype)
    gate, up = x.double().chunk(2, -1)
    expected = gate / (1 + (-gate).exp()) * up
    result = silu_and_mul(x, implementation=implementation)
    assert relative_error(result, expected) < LIMITS[dtype]
    cubic = gate + 0.044715 * gate**3
    expected = 0.5 * gate * (1 + torch.tanh((2 / torch.pi) ** 0.5 * cubic)) * up
    result = gelu_tanh_and_mul(x, implementation=implementation)
    assert relative_error(result, expected) < LIMITS[dtype]


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"^gate_up:"):
        silu_and_mul(torch.randn(2, 3))
    with pytest.raises(ValueError, match=r"^weight:"):
        rms_norm(torch.randn(2, 4), torch.ones(3), 1e-6)
    with pytest.raises(ValueError, match=r"^residual:"):
        rms_norm(torch.randn(2, 4), torch.ones(4), 1e-6, residual=torch.randn(3, 4))
