"""The engine's greedy tokens on the device against those of the CPU, in float32."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from headrace.worker.engine.sequence import SamplingParams, Sequence
from headrace.worker.engine.step import Finished
from headrace.worker.model.load.loader import LoadedModel
from headrace.worker.model.passes.fusion import fuse_layers

from .gpu_models import Limits, build, make_engine, make_runner, spread
from .gpu_report import Row
from .roofline import Model

SMALL = Model("Qwen3-small", 4, 256, 8, 2, 64, 512, 4096)
LIMITS = Limits(max_sequences=12, max_model_len=640, max_batched_tokens=256)
TIE = 1e-3
"""Nats between the best two tokens below which rounding may choose."""


@dataclass(frozen=True, slots=True)
class Mode:
    """How the engine runs on the device."""

    graphs: bool
    overlap: bool

    @property
    def name(self) -> str:
        return ("graphs" if self.graphs else "eager") + (", overlap" if self.overlap else "")


def check_tokens(device: torch.device, *, quick: bool) -> Iterator[Row]:
    """In each mode, the sequences whose tokens are the CPU's."""
    on_cpu = build(SMALL, torch.float32, torch.device("cpu"))
    spread(on_cpu.model)
    prompts = _prompts(6, [1, 5, 40]) if quick else _prompts(16, [1, 5, 64, 200, 500])
    expected = _serve(on_cpu, prompts, Mode(graphs=False, overlap=False), logprobs_of_every=1)
    loaded = build(SMALL, torch.float32, device)
    loaded.model.load_state_dict(on_cpu.model.state_dict())
    fuse_layers(loaded.model)
    modes = [Mode(graphs, overlap) for graphs in (False, True) for overlap in (False, True)]
    for mode in modes if device.type == "cuda" else modes[1:2]:
        # Some rows are not greedy or ask for log-probabilities, so that both ways of sampling are taken.
        found = _serve(loaded, prompts, mode, logprobs_of_every=3)
        same = sum(_agree(found[name], expected[name]) for name in expected)
        case = f"greedy tokens as on the CPU, {mode.name}"
        tokens = sum(len(finished.tokens) for finished in expected.values())
        yield Row(case, f"{same} of {len(expected)}", f"{tokens} tokens", same / len(expected), ">= 1")


def _prompts(count: int, lengths: list[int]) -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(SMALL.vocabulary) for _ in range(rng.choice(lengths))] for _ in range(count)]


def _serve(
    loaded: LoadedModel, prompts: list[list[int]], mode: Mode, *, logprobs_of_every: int
) -> dict[str, Finished]:
    """Prompts that arrive one each step, so that prefill and decode are mixed and batch sizes vary."""
    runner = make_runner(loaded, LIMITS, graphs=mode.graphs)
    engine = make_engine(loaded, runner, LIMITS, overlap=mode.overlap)
    results: dict[str, Finished] = {}
    arrivals: list[Sequence] = []
    for at, prompt in enumerate(prompts):
        sampling = SamplingParams(max_tokens=40, logprobs=None if at % logprobs_of_every else 2)
        arrivals.append(Sequence(str(at), list(prompt), sampling, arrival=at))
    while arrivals or engine.has_work:
        engine.add(arrivals[:1])
        del arrivals[:1]
        results |= {finished.sequence_id: finished for finished in engine.step().finished}
    return results


def _agree(found: Finished, expected: Finished) -> bool:
    """Equal, or different from where the CPU's own choice was as good as a tie."""
    for at, (mine, its) in enumerate(zip(found.tokens, expected.tokens, strict=True)):
        if mine != its:
            logprobs = expected.logprobs
            return logprobs is not None and _gap(logprobs[at][1]) < TIE
    return True


def _gap(top: list[tuple[int, float]]) -> float:
    return top[0][1] - top[1][1]
