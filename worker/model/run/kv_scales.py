"""Scales of a float8 KV cache: measured, one for each head of each layer's keys and values.

float8_e4m3fn is as precise, relative to the number, from 2**-6 to 448: a scale decides what is in that range,
not how fine it is. So it suffices that the largest value met with lands well below 448 and that scales are
powers of two, by which dividing rounds nothing.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ....kernels import AttentionBatch, Implementation
from ..load.loader import LoadedModel
from .attention import LayerAttention, PagedAttention, Rotation, connect
from .kv_tensors import KVTensors, allocate

LARGEST_STORED = 56.0
"""Stored magnitude of the largest value measured, or down to half of it: 8 times as much still fits."""

_SEQUENCES = 4
_LENGTH = 128


@dataclass(frozen=True, slots=True)
class KVScales:
    """float32 [num_heads] of each layer: what is stored times this is the key, or the value."""

    keys: list[Tensor]
    values: list[Tensor]


@torch.inference_mode()
def measure_scales(loaded: LoadedModel, implementation: Implementation | None = None) -> KVScales:
    """Run some sequences of the same random tokens each time, and see how large keys and values get.

    That the tokens are the same matters: workers that serve one model must agree on its scales, or a request
    that goes from one to another could go on differently.
    """
    info = loaded.info
    length = min(_LENGTH, info.max_positions or _LENGTH)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(info.vocab_size, (_SEQUENCES, length), generator=generator)
    bos = loaded.tokenizer.bos_token_id
    if isinstance(bos, int):
        # The first token's keys are often the largest: much attention rests there.
        tokens[:, 0] = bos
    total, device = tokens.numel(), info.device
    kv = allocate(info.kv_layers, _SEQUENCES, length, info.dtype, device)
    meter = _Meter(kv, implementation)
    connect(loaded.model, meter)
    starts = torch.arange(0, total + 1, length, dtype=torch.int32, device=device)
    lengths = torch.full((_SEQUENCES,), length, dtype=torch.int32, device=device)
    table = torch.arange(_SEQUENCES, dtype=torch.int32, device=device)[:, None]
    meter.paged.begin(
        AttentionBatch(starts, lengths, table, length, length), torch.arange(total, device=device)
    )
    loaded.model(
        input_ids=tokens.view(1, -1).to(device),
        position_ids=torch.arange(length, device=device).repeat(_SEQUENCES)[None],
        use_cache=False,
        logits_to_keep=1,
    )
    layers = range(len(info.kv_layers))
    return KVScales(
        [_scale(meter.largest_keys[layer]) for layer in layers],
        [_scale(meter.largest_values[layer]) for layer in layers],
    )


def _scale(largest: Tensor) -> Tensor:
    """The power of two that brings ``largest`` into (LARGEST_STORED / 2, LARGEST_STORED]; 1 for zero."""
    exponent = torch.log2(largest.double() / LARGEST_STORED).ceil()
    return torch.where(largest > 0, exponent.exp2(), 1.0).float()


@dataclass(slots=True)
class _Meter:
    """Paged attention that records the largest magnitude of each head's keys and values."""

    kv: KVTensors
    implementation: Implementation | None
    paged: PagedAttention = field(init=False)
    largest_keys: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    largest_values: dict[int, Tensor] = field(default_factory=dict[int, Tensor])

    def __post_init__(self) -> None:
        self.paged = PagedAttention(self.kv, self.implementation)

    def attend(
        self, call: LayerAttention, query: Tensor, key: Tensor, value: Tensor, rotation: Rotation | None
    ) -> Tensor:
        output = self.paged.attend(call, query, key, value, rotation)
        for largest, stored in (
            (self.largest_keys, self.kv.keys[call.layer]),
            (self.largest_values, self.kv.values[call.layer]),
        ):
            largest[call.layer] = stored.abs().amax((0, 2, 3))
        return output
