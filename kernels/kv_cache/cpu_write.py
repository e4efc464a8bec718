"""Cache writes on the CPU, in torch."""

import torch
from torch import Tensor

from ..fp8 import quantize


def write(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    key_scale: Tensor | None,
    value_scale: Tensor | None,
) -> None:
    """See ``write_kv``."""
    _, kv_heads, block_size, head_dim = key_cache.shape
    used = slot_mapping >= 0
    if not used.all():
        key, value, slot_mapping = key[used], value[used], slot_mapping[used]
    # Rows of each token's heads in a cache viewed as one row per block, head and position.
    first = slot_mapping + slot_mapping // block_size * (block_size * (kv_heads - 1))
    slots = first[:, None] + torch.arange(kv_heads, device=first.device) * block_size
    for rows, cache, scale in ((key, key_cache, key_scale), (value, value_cache, value_scale)):
        stored = cache.view(-1, head_dim)
        if cache.dtype == torch.float8_e4m3fn:
            # torch cannot index float8.
            stored, rows = stored.view(torch.uint8), quantize(rows, scale).view(torch.uint8)
        stored.index_copy_(0, slots.flatten(), rows.reshape(-1, head_dim))
