"""What the settings ask for is what the engine gets."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import save_tiny_model

from headrace.worker.assembly import assemble
from headrace.worker.config import KVCacheDtype, WorkerConfig
from headrace.worker.model.run import runner


@pytest.mark.parametrize(("name", "dtype"), [("auto", torch.float32), ("fp8", torch.float8_e4m3fn)])
def test_the_cache_is_of_the_dtype_that_is_set(
    name: KVCacheDtype, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocated: list[tuple[int, torch.dtype]] = []
    allocate = runner.allocate

    def noting(layers: Any, num_blocks: int, block_size: int, kind: torch.dtype, device: Any) -> Any:
        allocated.append((num_blocks, kind))
        return allocate(layers, num_blocks, block_size, kind, device)

    monkeypatch.setattr(runner, "allocate", noting)
    folder = save_tiny_model("llama", tmp_path)
    config = WorkerConfig(
        model=str(folder), device="cpu", dtype="float32", kv_cache_memory="64KiB", kv_cache_dtype=name
    )
    assembly = assemble(config)
    # 2 layers, K and V, 2 heads of 16 in blocks of 16 tokens.
    assert allocated == [(65536 // (2 * 2 * 2 * 16 * 16 * dtype.itemsize), dtype)]
    assert any(str(dtype).removeprefix("torch.") in fact for fact in assembly.facts)
