"""Fused layers take the place of those they equal, and of no others."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from parity import Case, random_prompts, reference_cases, serve
from tiny_models import ARCHITECTURES, BOS, EOS, PAD, VOCABULARY, tiny_model, tiny_tokenizer
from torch import nn
from torch.nn.functional import gelu, relu, silu

from headrace.kernels import rms_norm, rotate_and_write_kv
from headrace.worker.model.load.loader import prepare
from headrace.worker.model.passes.fused_attention import FusedAttention
from headrace.worker.model.passes.fused_decoder import FusedDecoderLayer
from headrace.worker.model.passes.fused_layers import FusedMLP, FusedNorm, fused_mlp, fused_norm
from headrace.worker.model.passes.fusion import Fused, fuse_layers


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_tokens_are_the_plain_models(architecture: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # pytest shows it when the test fails
    rng = random.Random(seed)
    prompts = random_prompts(rng, lambda: rng.randrange(PAD + 1, VOCABULARY), 20)
    cases = reference_cases(tiny_model(architecture, seed), prompts, 4, max_tokens=6, eos=EOS)
    model = tiny_model(architecture, seed)
    model.set_attn_implementation("headrace")
    fused = fuse_layers(model, "torch")
    layers = model.config.num_hidden_layers
    assert fused == Fused(layers, fused.norms, layers, layers, layers)
    assert fused.norms >= 2 * layers + 1
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
    for norm in (OtherRMSNorm(), OtherEps(), nn.LayerNorm(16)):
        assert fused_norm(norm, "torch") is None
    for mlp in (OtherMLP(relu), OtherMLP(gelu), OtherMLP(silu), OtherMLP(silu, bias=True)):
        assert fused_mlp(mlp, "torch") is None


def test_a_norm_that_has_added_normalizes_nothing_else() -> None:
    norm = FusedNorm(nn.Parameter(torch.rand(16) + 0.5), 1e-6, 0.0, "torch").requires_grad_(False)
    x, residual, other = (torch.randn(3, 16) for _ in range(3))
    plain = norm(other)
    total = norm.add(x, residual)
    torch.testing.assert_close(total, x + residual)
    assert torch.equal(norm(other), plain)
    assert torch.equal(norm(norm.add(x, residual)), norm(x + residual))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_step_has_no_kernels_left_that_are_parts_of_others(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fused layer adds, rotates and writes only in the kernels that do more."""
    model = tiny_model(architecture)
    model.set_attn_implementation("headrace")
    fuse_layers(model, "torch")
    loaded = prepare(architecture, model, tiny_tokenizer())
    norms: list[bool] = []
    rotations: list[bool] = []

    def counted_norm(x: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        norms.append(options.get("residual") is not None)
        return rms_norm(x, *arguments, **options)

    def counted_rotation(*arguments: Any, **options: Any) -> torch.Tensor:
        rotations.append(options["norm"] is not None)
        return rotate_and_write_kv(*arguments, **options)

    def unwanted(*_arguments: Any, **_options: Any) -> None:
        raise AssertionError("written without rotary embedding")

    monkeypatch.setattr("headrace.worker.model.passes.fused_layers.rms_norm", counted_norm)
    monkeypatch.setattr("headrace.worker.model.run.attention.rotate_and_write_kv", counted_rotation)
    monkeypatch.setattr("headrace.worker.model.run.attention.write_kv", unwanted)
    serve(loaded, [Case([BOS, 5, 6], [])], max_tokens=1)
    layers = model.config.num_hidden_layers
    assert norms.count(True) == 2 * layers
    # The first layer's, and in Gemma those of what is to be added.
    assert norms.count(False) == 1 + (2 * layers if "gemma" in architecture else 0)
    assert rotations == [architecture in ("qwen3", "gemma3")] * layers


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_models_in_half_precision_are_fused(dtype: torch.dtype) -> None:
    for architecture in ("llama", "gemma3"):
        model = tiny_model(architecture).to(dtype)
        model.set_attn_implementation("headrace")
        fuse_layers(model, "torch")
        kinds = [type(module) for module in model.modules()]
        assert FusedNorm in kinds
        for kind in (FusedMLP, FusedAttention, FusedDecoderLayer):
            assert kinds.count(kind) == model.config.num_hidden_layers
        assert not any("RMSNorm" in kind.__name__ for kind in kinds)
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}
