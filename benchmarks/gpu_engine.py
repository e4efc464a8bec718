"""The engine's decode steps over their floor: each op reading its inputs and writing its outputs once."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from headrace.worker.engine.engine import Engine
from headrace.worker.engine.iteration import Iteration, Launched, Runner
from headrace.worker.engine.sequence import SamplingParams, Sequence
from headrace.worker.model.load.loader import LoadedModel
from headrace.worker.model.passes.fusion import fuse_layers

from .gpu_models import LLAMA_8B, QWEN_06B, TINY, Limits, build, make_engine, make_runner
from .gpu_report import Row
from .gpu_timing import copy_rate, matmul_rate
from .roofline import BYTES, Device, Model, step

BATCHES = (1, 8, 64, 256)


@dataclass(frozen=True, slots=True)
class Case:
    """A model, and what it is to decode: ``steps`` steps after prompts of ``prompt`` tokens."""

    shape: Model
    loaded: LoadedModel
    limits: Limits
    rates: Device
    prompt: int
    steps: int


def check_small_model(device: torch.device, *, quick: bool) -> Iterator[Row]:
    """Qwen3 0.6B."""
    yield from _check(TINY if quick else QWEN_06B, device, quick=quick)


def check_large_model(device: torch.device, *, quick: bool) -> Iterator[Row]:
    """Llama 3.1 8B."""
    yield from _check(TINY if quick else LLAMA_8B, device, quick=quick)


def _check(shape: Model, device: torch.device, *, quick: bool) -> Iterator[Row]:
    on_gpu = device.type == "cuda"
    prompt, steps, batches = (20, 4, (1, 3)) if quick else (512, 64, BATCHES)
    # The first sequences decode while the last ones' prompts are computed, some steps more than asked for.
    limits = Limits(max(batches), max_model_len=prompt + steps + 64, max_batched_tokens=8192)
    rates = Device("measured", copy_rate(device), matmul_rate(device))
    loaded = build(shape, torch.bfloat16 if on_gpu else torch.float32, device)
    fused = fuse_layers(loaded.model)
    whole = min(fused.attentions, fused.mlps, fused.decoders)
    yield Row(f"{shape.name}, layers fused", f"{whole} of {fused.layers}", "", whole / fused.layers, ">= 1")
    case = Case(shape, loaded, limits, rates, prompt, steps)
    # One after the other: a runner connects the model's layers to its own cache.
    for graphs in (True, False) if on_gpu else (False,):
        began = time.perf_counter()
        runner = make_runner(loaded, limits, graphs=graphs)
        if graphs:
            yield Row(f"{shape.name}, graphs recorded", f"{time.perf_counter() - began:.1f} s")
        for overlap in (True, False):
            # Without graphs or overlap, the two batches at which the host matters most and little.
            for batch in batches if graphs and overlap else batches[::2]:
                took = _step_time(case, runner, batch, overlap=overlap)
                yield _row(case, took, batch, graphs=graphs, overlap=overlap)
        if on_gpu:
            yield _launches_without_waiting(case, runner, graphs=graphs)
            del runner
            torch.cuda.empty_cache()
    # At the batch whose step is compared with its floor.
    runner = make_runner(loaded, limits, graphs=on_gpu, kv_dtype=torch.float8_e4m3fn)
    batch = batches[-2]
    took = _step_time(case, runner, batch, overlap=True)
    yield _row(case, took, batch, graphs=on_gpu, overlap=True, cache_bytes=1)


def _step_time(case: Case, runner: Runner, batch: int, *, overlap: bool) -> float:
    engine = make_engine(case.loaded, runner, case.limits, overlap=overlap)
    _prefill(engine, case.shape, batch, case.prompt, max_tokens=case.steps + 64)
    for _ in range(4):
        engine.step()
    began = time.perf_counter()
    for _ in range(case.steps):
        engine.step()
    took = (time.perf_counter() - began) / case.steps
    _end(engine, batch)
    return took


def _row(
    case: Case, took: float, batch: int, *, graphs: bool, overlap: bool, cache_bytes: int = BYTES
) -> Row:
    length = case.prompt + 4 + case.steps // 2
    costs = step(case.shape, batch, 1, length, cache_bytes=cache_bytes)
    floor = sum(cost.floor(case.rates) for cost in costs) / 1e6
    mode = ("graphs" if graphs else "eager") + (", overlap" if overlap else "")
    mode += ", float8 cache" if cache_bytes == 1 else ""
    return Row(
        f"{case.shape.name}, {batch} sequences, {mode}",
        f"{batch / took:.0f} tokens/s",
        f"{took * 1e3:.2f} ms, floor {floor * 1e3:.2f}",
        took / floor,
        "<= 1.15" if batch == 64 and graphs and overlap and cache_bytes == BYTES else "",
    )


def _launches_without_waiting(case: Case, runner: Runner, *, graphs: bool) -> Row:
    """Launch while torch refuses to wait for the device; collecting is the one place that may."""
    name = f"{case.shape.name}, waits in {'replayed' if graphs else 'eager'} launches"
    watched = _Watched(runner)
    engine = make_engine(case.loaded, watched, case.limits, overlap=True)
    _prefill(engine, case.shape, 8, 64, max_tokens=32)
    watched.refusing = True
    for _ in range(8):
        engine.step()
    watched.refusing = False
    _end(engine, 8)
    return Row(name, "none in 8 steps")


class _Watched:
    """A runner whose launches raise when something waits for the device, while ``refusing``."""

    def __init__(self, runner: Runner) -> None:
        self.refusing = False
        self._runner = runner

    def launch(self, iteration: Iteration) -> Launched:
        if not self.refusing:
            return self._runner.launch(iteration)
        torch.cuda.set_sync_debug_mode("error")
        try:
            return self._runner.launch(iteration)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def _prefill(engine: Engine, shape: Model, batch: int, length: int, *, max_tokens: int) -> None:
    """Bring ``batch`` sequences to where each has sampled its first token."""
    rng = random.Random(batch)
    sampling = SamplingParams(max_tokens=max_tokens)
    engine.add(
        Sequence(str(at), [rng.randrange(shape.vocabulary) for _ in range(length)], sampling, arrival=at)
        for at in range(batch)
    )
    while True:
        chunks = engine.step().chunks
        if len(chunks) == batch and all(chunk.length == 1 for chunk in chunks):
            return


def _end(engine: Engine, batch: int) -> None:
    engine.cancel({str(at): "cancelled" for at in range(batch)})
    while engine.has_work:
        engine.step()
