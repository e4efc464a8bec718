"""How large a block is, and how many there are."""

import os

import pytest
import torch

from headrace.worker.model.run.kv_tensors import KVLayer, allocate, available_ram, block_bytes, blocks_for

LAYERS = [KVLayer(num_heads=2, head_dim=16), KVLayer(num_heads=1, head_dim=64)]
CPU = torch.device("cpu")


def test_blocks_take_the_memory_they_are_said_to() -> None:
    kv = allocate(LAYERS, 10, 8, torch.bfloat16, CPU)
    held = sum(tensor.numel() * tensor.element_size() for tensor in kv.keys + kv.values)
    assert held == 10 * block_bytes(LAYERS, 8, torch.bfloat16)
    assert kv.keys[1].shape == kv.values[1].shape == (10, 1, 8, 64)
    assert (kv.num_blocks, kv.block_size) == (10, 8)


def test_as_many_blocks_as_fit() -> None:
    size = block_bytes(LAYERS, 16, torch.float32)
    assert blocks_for(10 * size + size - 1, LAYERS, 16, torch.float32) == 10
    with pytest.raises(ValueError, match=rf"kv_cache_memory: must be at least {size} bytes"):
        blocks_for(size - 1, LAYERS, 16, torch.float32)


def test_never_all_of_the_machine() -> None:
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < available_ram() <= machine
