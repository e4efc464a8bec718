"""Fused layers take the place of those they equal, and of no others."""

import random
from collections.abc import Callable

import pytest
import torch
from parity import random_prompts, reference_cases, serve
from tiny_models import ARCHITECTURES, EOS, PAD, VOCABULARY, tiny_model, tiny_tokenizer
from torch import nn
from torch.nn.functional import gelu, relu, silu

from headrace.worker.model.fused_layers import FusedMLP, FusedNorm, fuse_layers
from headrace.worker.model.loader import prepare


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_tokens_are_the_plain_models(architecture: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # pytest shows it when the test fails
    rng = random.Random(seed)
    prompts = random_prompts(rng, lambda: rng.randrange(PAD + 1, VOCABULARY), 20)
    cases = reference_cases(tiny_model(architecture, seed), prompts, 4, max_tokens=6, eos=EOS)
    model = tiny_model(architecture, seed)
    model.set_attn_implementation("headrace")
    norms, mlps = fuse_layers(model, "torch")
    layers = model.config.num_hidden_layers
    assert mlps == layers
    assert norms >= 2 * layers + 1
    outcome = serve(prepare(architecture, model, tiny_tokenizer()), cases, max_tokens=6)
    assert outcome.outputs == [case.expected for case in cases]


class OtherRMSNorm(nn.Module):
    """Multiplies by twice the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(16) + 0.5)
        self.eps = 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * self.weight * x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()


class OtherEps(nn.Module):
    """Adds another number than it says."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(16) + 0.5)
        self.eps = 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()


OtherEps.__name__ = "OtherEpsRMSNorm"


class OtherMLP(nn.Module):
    """Activates with something else, or has biases, or multiplies elsewhere."""

    def __init__(self, activate: Callable[..., torch.Tensor], *, bias: bool = False) -> None:
        super().__init__()
        self.act_fn = activate
        self.gate_proj = nn.Linear(16, 24, bias=bias)
        self.up_proj = nn.Linear(16, 24, bias=bias)
        self.down_proj = nn.Linear(24, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x) + 1)


def test_layers_of_another_kind_stay() -> None:
    model = nn.Sequential(
        OtherRMSNorm(),
        OtherEps(),
        OtherMLP(relu),
        OtherMLP(gelu),
        OtherMLP(silu),
        OtherMLP(silu, bias=True),
        nn.LayerNorm(16),
    )
    before = list(model)
    assert fuse_layers(model, "torch") == (0, 0)
    assert list(model) == before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_models_in_half_precision_are_fused(dtype: torch.dtype) -> None:
    for architecture in ("llama", "gemma3"):
        model = tiny_model(architecture).to(dtype)
        fuse_layers(model, "torch")
        kinds = [type(module) for module in model.modules()]
        assert FusedNorm in kinds
        assert kinds.count(FusedMLP) == model.config.num_hidden_layers
        assert not any("RMSNorm" in kind.__name__ for kind in kinds)
