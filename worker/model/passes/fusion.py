"""Fusion pass over a loaded model: small operations of a layer become one, on a GPU one kernel.

A layer is replaced only where its own forward pass, on random inputs in float32, gives what the fused one
gives; so a model with a layer of another kind keeps it.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ....kernels import Implementation, rotate_and_write_kv
from ..run.attention import LayerAttention, Rotation, connect
from .fused_attention import FusedAttention, fused_attention
from .fused_decoder import FusedDecoderLayer, fused_decoder_layer
from .fused_layers import FusedMLP, FusedNorm, agree, fused_mlp, fused_norm

_ROUNDINGS = 2000
"""Of float32, that two ways through a whole layer may differ by: about 2e-4 of the largest value. What a
layer of another kind gives differs by far more."""


@dataclass(slots=True)
class Fused:
    """How many layers of each kind became fewer operations, and how many there are."""

    attentions: int = 0
    norms: int = 0
    mlps: int = 0
    decoders: int = 0
    layers: int = 0

    def __str__(self) -> str:
        parts = {
            "attention with packed QKV, rotary embedding and cache write": self.attentions,
            "feed-forward with packed gate and up": self.mlps,
            "residual with norm": self.decoders,
        }
        return ", ".join(f"{name} in {count} of {self.layers} layers" for name, count in parts.items())


def fuse_layers(model: PreTrainedModel, implementation: Implementation | None = None) -> Fused:
    """Replace layers of a servable ``model`` where that is the same; which were."""
    observed = _observe(model)
    fused = Fused(layers=len(observed.calls))
    # What is replaced is let go at once, so that its weights are not kept beside the packed ones.
    while observed.attentions:
        module = next(iter(observed.attentions))
        inputs = observed.attentions.pop(module)
        replacement = _checked_attention(module, observed.calls[inputs.layer], inputs)
        if replacement is not None:
            _replace(model, module, replacement)
            fused.attentions += 1
        del module
    _fuse_parts(model, implementation, fused)
    previous: FusedDecoderLayer | None = None
    for module, inputs in observed.decoders.items():
        replacement = _checked_decoder(module, inputs)
        if replacement is None:
            previous = None
            continue
        _replace(model, module, replacement)
        fused.decoders += 1
        if previous is not None:
            previous.precede(replacement.input_layernorm)
        previous = replacement
    final = getattr(model.base_model, "norm", None)
    if previous is not None and isinstance(final, FusedNorm):
        previous.precede(final)
    return fused


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What the model gives one of its layers beside hidden states of a width."""

    layer: int
    width: int
    options: dict[str, Any]


@dataclass(slots=True)
class _Observed:
    """A forward pass's calls: of attention by layer, of attention modules, of decoder layers, in order."""

    calls: dict[int, LayerAttention] = field(default_factory=dict[int, LayerAttention])
    attentions: dict[nn.Module, _Inputs] = field(default_factory=dict[nn.Module, _Inputs])
    decoders: dict[nn.Module, _Inputs] = field(default_factory=dict[nn.Module, _Inputs])

    def attend(
        self, call: LayerAttention, query: Tensor, key: Tensor, value: Tensor, rotation: Rotation | None
    ) -> Tensor:
        del key, value, rotation
        self.calls[call.layer] = call
        return query


def _observe(model: PreTrainedModel) -> _Observed:
    """Run some tokens, the last of them as late as the model can have one: a layer that does something to
    late positions only must be found out."""
    observed = _Observed()
    connect(model, observed)
    last = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 32768
    positions = torch.tensor([[0, 1, last // 3, last - 1]], device=model.device)
    hooks = [
        module.register_forward_pre_hook(_noting(observed), with_kwargs=True)
        for module in model.modules()
        if hasattr(module, "q_proj") or hasattr(module, "self_attn")
    ]
    with torch.inference_mode():
        model(
            input_ids=torch.zeros_like(positions),
            position_ids=positions,
            use_cache=False,
            logits_to_keep=1,
        )
    for hook in hooks:
        hook.remove()
    # Layers are copied below, with what they are connected to.
    connect(model, _Met())
    return observed


def _noting(observed: _Observed) -> Any:
    def note(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        named = dict(options)
        hidden: Any = args[0] if args else named.pop("hidden_states", None)
        embeddings = named.get("position_embeddings")
        if len(args) > 1 or not isinstance(hidden, Tensor) or not _is_rotary(embeddings):
            return
        is_decoder = hasattr(module, "self_attn")
        layer = getattr(module.self_attn if is_decoder else module, "layer_idx", None)
        if isinstance(layer, int):
            seen = observed.decoders if is_decoder else observed.attentions
            seen[module] = _Inputs(layer, hidden.shape[-1], named)

    return note


def _is_rotary(embeddings: Any) -> bool:
    if not isinstance(embeddings, tuple) or len(embeddings) != 2:
        return False
    return all(
        isinstance(one, Tensor) and one.dim() == 3 and not one.shape[-1] % 2 and one.is_floating_point()
        for one in embeddings
    )


def _fuse_parts(module: nn.Module, implementation: Implementation | None, fused: Fused) -> None:
    # Level by level: a list of all modules would keep the weights of those that are replaced.
    for name, child in list(module.named_children()):
        if (norm := fused_norm(child, implementation)) is not None:
            setattr(module, name, norm)
            fused.norms += 1
        elif (mlp := fused_mlp(child, implementation)) is not None:
            setattr(module, name, mlp)
            fused.mlps += 1
        else:
            _fuse_parts(child, implementation, fused)


def _checked_attention(layer: nn.Module, call: LayerAttention, inputs: _Inputs) -> FusedAttention | None:
    exact = copy.deepcopy(layer).float()
    candidate = fused_attention(exact, call)
    if candidate is None or not _holds(partial(_same_attention, exact, candidate, inputs)):
        return None
    return fused_attention(layer, call)


def _checked_decoder(layer: nn.Module, inputs: _Inputs) -> FusedDecoderLayer | None:
    exact = copy.deepcopy(layer).float()
    for part in exact.modules():
        # Kernels need not be compiled for float32 to see what form a layer has.
        if isinstance(part, FusedNorm | FusedMLP):
            part.implementation = "torch"
    candidate = fused_decoder_layer(exact)
    if candidate is None or not _holds(partial(_same_output, exact, candidate, inputs)):
        return None
    return fused_decoder_layer(layer)


def _holds(check: Callable[[], bool]) -> bool:
    """False, too, where parts of another kind do not fit together at all."""
    try:
        return check()
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return False


@dataclass(slots=True)
class _Met:
    """Attention that records rotated queries, keys and values, and returns the queries."""

    calls: list[LayerAttention] = field(default_factory=list[LayerAttention])
    tensors: list[Tensor] = field(default_factory=list[Tensor])

    def attend(
        self, call: LayerAttention, query: Tensor, key: Tensor, value: Tensor, rotation: Rotation | None
    ) -> Tensor:
        if rotation is not None:
            rows, heads, head_dim = key.shape
            keys, values = (key.new_zeros(1, heads, rows, head_dim) for _ in range(2))
            query = rotate_and_write_kv(
                query,
                key,
                value,
                rotation.cosine,
                rotation.sine,
                keys,
                values,
                torch.arange(rows, device=key.device),
                norm=rotation.norm,
                implementation="torch",
            )
            key, value = keys[0].transpose(0, 1), values[0].transpose(0, 1)
        self.calls.append(call)
        self.tensors += [query, key, value]
        return query


@torch.inference_mode()
def _same_attention(layer: nn.Module, candidate: FusedAttention, inputs: _Inputs) -> bool:
    met = [_Met(), _Met()]
    found: list[Tensor] = []
    for module, meeting in zip((layer, candidate), met, strict=True):
        connect(module, meeting)
    for hidden, options in _random_inputs(layer, inputs):
        for module in (layer, candidate):
            output = module(hidden_states=hidden, **options)
            if not isinstance(output, tuple) or len(output) != 2 or output[1] is not None:
                return False
            found.append(output[0])
    expected, tensors = met[0], met[1]
    if not _same_calls(expected.calls, tensors.calls):
        return False
    pairs = [*zip(tensors.tensors, expected.tensors, strict=True), *zip(found[1::2], found[::2], strict=True)]
    return all(agree(one, other, roundings=_ROUNDINGS) for one, other in pairs)


def _same_calls(expected: list[LayerAttention], found: list[LayerAttention]) -> bool:
    def told(call: LayerAttention) -> tuple[Any, ...]:
        return call.layer, call.scale, call.sliding_window, call.softcap, call.masked, call.sinks is None

    return [told(call) for call in expected] == [told(call) for call in found]


@torch.inference_mode()
def _same_output(layer: nn.Module, candidate: nn.Module, inputs: _Inputs) -> bool:
    connect(layer, _Met())
    for hidden, options in _random_inputs(layer, inputs):
        expected, found = layer(hidden, **options), candidate(hidden, **options)
        if not isinstance(expected, Tensor) or not agree(found, expected, roundings=_ROUNDINGS):
            return False
    return True


def _random_inputs(layer: nn.Module, inputs: _Inputs) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    """Hidden states small and large, with everything else as the model gave it, in float32."""
    options = dict(inputs.options)
    options["position_embeddings"] = tuple(one.float() for one in options["position_embeddings"])
    rows = options["position_embeddings"][0].shape[1]
    device = next(layer.parameters()).device
    for size in (0.1, 1.0, 30.0):
        yield size * torch.randn(1, rows, inputs.width, device=device), options


def _replace(model: nn.Module, module: nn.Module, replacement: nn.Module) -> None:
    for parent in model.modules():
        for name, child in parent.named_children():
            if child is module:
                setattr(parent, name, replacement)
                return
    raise AssertionError("the layer is not a part of the model")
