"""The largest iteration can be run on any model, and the cache gets what it leaves."""

import pytest
import torch
from tiny_models import tiny_model, tiny_tokenizer

from headrace.worker.model.load.loader import LoadedModel, prepare
from headrace.worker.model.run.device_memory import DeviceMemory, measure, run_iteration

GIB = 2**30


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    model = tiny_model(request.param)
    model.set_attn_implementation("headrace")
    return prepare(request.param, model, tiny_tokenizer())


@pytest.mark.parametrize(
    ("num_tokens", "num_sequences", "max_model_len", "rows", "rows_of_model"),
    [
        (50, 4, 64, 4, 50),  # one long prompt, three tokens beside it
        (50, 4, 20, 4, 50),  # no sequence can be as long as the budget
        (50, 2, 20, 2, 40),  # nor all sequences together
        (3, 8, 20, 3, 3),  # fewer tokens than sequences
    ],
)
def test_the_largest_iteration(
    loaded: LoadedModel,
    num_tokens: int,
    num_sequences: int,
    max_model_len: int,
    rows: int,
    rows_of_model: int,
) -> None:
    seen: list[tuple[int, ...]] = []
    hook = loaded.model.get_input_embeddings().register_forward_pre_hook(
        lambda _module, arguments: seen.append(tuple(arguments[0].shape))
    )
    tokens = run_iteration(
        loaded,
        num_tokens=num_tokens,
        num_sequences=num_sequences,
        max_model_len=max_model_len,
        block_size=4,
    )
    hook.remove()
    assert tokens.shape == (rows,)
    assert seen == [(1, rows_of_model)]


def test_what_is_left_for_the_cache() -> None:
    memory = DeviceMemory(total=100 * GIB, used=20 * GIB, iteration=5 * GIB)
    assert memory.left(0.9) == 65 * GIB
    with pytest.raises(ValueError, match=r"gpu_memory_utilization: 0.25 of the device's 100.00 GiB leaves"):
        memory.left(0.25)


class FakeCuda:
    """A device on which the test tells what is allocated, and the peak since the last reset."""

    def __init__(self, allocated: list[int], peaks: list[int]) -> None:
        self.allocated, self.peaks = allocated, peaks

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _device: None)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _device: self.allocated.pop(0))
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _device: self.peaks.pop(0))
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (60 * GIB, 80 * GIB))


@pytest.mark.parametrize(("graphs", "iteration"), [(False, 7), (True, 9)])
def test_recorded_steps_take_memory_of_their_own(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, graphs: bool, iteration: int
) -> None:
    FakeCuda([10, 11], [17, 13]).install(monkeypatch)
    memory = measure(
        loaded, max_batched_tokens=16, max_sequences=4, max_model_len=32, block_size=4, graphs=graphs
    )
    assert memory == DeviceMemory(total=80 * GIB, used=20 * GIB, iteration=iteration)
