"""Paged attention of a transformers model: layers write K and V into blocks and attend over those."""

from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor, nn
from transformers import AttentionInterface

from ....kernels import (
    AttentionBatch,
    HeadNorm,
    Implementation,
    paged_attention,
    rotate_and_write_kv,
    write_kv,
)
from .kv_tensors import KVTensors

ATTENTION_NAME = "headrace"
"""``attn_implementation`` of a served model. No mask function goes by that name, so none is built."""

_ATTRIBUTE = "headrace_attention"


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """Parameters of one layer's attention call."""

    layer: int
    scale: float
    sliding_window: int | None
    softcap: float | None
    sinks: Tensor | None
    masked: bool
    """The model made a mask of its own."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotary embedding, and head norms, to apply to queries and keys before attention."""

    cosine: Tensor
    """[T, d], of each token's position."""
    sine: Tensor
    norm: HeadNorm | None


class Attention(Protocol):
    """Attention function that a model's attention layers call."""

    def attend(
        self, call: LayerAttention, query: Tensor, key: Tensor, value: Tensor, rotation: Rotation | None
    ) -> Tensor:
        """Query [T, H, D], key [T, KH, D] and value [T, KH, DV] of a flat batch to the output [T, H, DV]."""
        ...


class PagedAttention:
    """Attention over the blocks of ``kv``, for the batch set by ``begin``."""

    def __init__(self, kv: KVTensors, implementation: Implementation | None = None) -> None:
        self._kv = kv
        self._implementation: Implementation | None = implementation
        self._batch: AttentionBatch | None = None
        self._slots: Tensor | None = None

    def begin(self, batch: AttentionBatch, slots: Tensor) -> None:
        """Set the batch of the next forward pass; ``slots`` int64 [T] is its slot mapping."""
        self._batch = replace(batch, cpu_metadata={})
        self._slots = slots

    def attend(
        self, call: LayerAttention, query: Tensor, key: Tensor, value: Tensor, rotation: Rotation | None
    ) -> Tensor:
        if self._batch is None or self._slots is None:
            raise RuntimeError("a forward pass began before the batch was set")
        keys, values = self._kv.keys[call.layer], self._kv.values[call.layer]
        key_scale, value_scale = self._kv.scales(call.layer)
        if rotation is None:
            write_kv(
                key,
                value,
                keys,
                values,
                self._slots,
                key_scale=key_scale,
                value_scale=value_scale,
                implementation=self._implementation,
            )
        else:
            query = rotate_and_write_kv(
                query,
                key,
                value,
                rotation.cosine,
                rotation.sine,
                keys,
                values,
                self._slots,
                norm=rotation.norm,
                key_scale=key_scale,
                value_scale=value_scale,
                implementation=self._implementation,
            )
        return paged_attention(
            query,
            keys,
            values,
            self._batch,
            scale=call.scale,
            sliding_window=call.sliding_window,
            softcap=call.softcap,
            sinks=call.sinks,
            key_scale=key_scale,
            value_scale=value_scale,
            # The query may be a transposed view; what follows wants the heads of a token side by side.
            out=query.new_empty(query.shape),
            implementation=self._implementation,
        )


def connect(model: nn.Module, attention: Attention) -> None:
    """Let every attention layer of ``model`` go through ``attention`` from the next forward pass on."""
    for module in model.modules():
        if isinstance(getattr(module, "layer_idx", None), int):
            setattr(module, _ATTRIBUTE, attention)


def attention_of(module: nn.Module) -> Attention:
    """The attention that a layer is connected to."""
    return getattr(module, _ATTRIBUTE)


def _attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """The signature transformers gives attention functions: [1, heads, T, D] in, [1, T, heads, D] out."""
    call = LayerAttention(
        layer=module.layer_idx,  # pyright: ignore[reportArgumentType]  # connect() chose modules by it
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        sliding_window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
        masked=attention_mask is not None,
    )
    flat = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return attention_of(module).attend(call, *flat, rotation=None).unsqueeze(0), None


AttentionInterface.register(ATTENTION_NAME, _attention_forward)
