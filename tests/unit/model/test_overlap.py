"""The runner never waits for its device, and overlapping iterations give the tokens that single ones give."""

import random
from dataclasses import replace

import pytest
import torch
from no_waiting import NoWaiting, WaitedError
from tiny_models import ARCHITECTURES, PAD, VOCABULARY, tiny_model, tiny_tokenizer

from headrace.worker.engine.detokenizer import Detokenizer
from headrace.worker.engine.engine import Engine
from headrace.worker.engine.iteration import Iteration, Launched
from headrace.worker.engine.sequence import SamplingParams, Sequence
from headrace.worker.model.load.loader import LoadedModel, prepare
from headrace.worker.model.run.runner import ModelRunner

KINDS = [
    SamplingParams(),
    SamplingParams(temperature=1.2, top_p=0.9),
    SamplingParams(frequency_penalty=1.0, logprobs=1),
]


class WatchedRunner:
    """A runner whose launches may not wait."""

    def __init__(self, runner: ModelRunner, mode: NoWaiting) -> None:
        self._runner = runner
        self._mode = mode

    def launch(self, iteration: Iteration) -> Launched:
        with self._mode:
            return self._runner.launch(iteration)


@pytest.fixture
def mode(monkeypatch: pytest.MonkeyPatch) -> NoWaiting:
    mode = NoWaiting()
    # A GPU has other implementations of these; what they do is launch kernels.
    for name in ("attention.paged_attention", "attention.write_kv", "sampler.sample"):
        module, function = name.split(".")
        path = f"headrace.worker.model.run.{module}.{function}"
        original = getattr(__import__(f"headrace.worker.model.run.{module}", fromlist=[function]), function)
        monkeypatch.setattr(path, mode.allowed(original))
    return mode


def load(architecture: str) -> LoadedModel:
    model = tiny_model(architecture, seed=2)
    model.set_attn_implementation("headrace")
    return prepare(architecture, model, tiny_tokenizer())


def outputs(loaded: LoadedModel, seed: int, *, overlap: bool, mode: NoWaiting | None) -> list[list[int]]:
    rng = random.Random(seed)
    runner = ModelRunner(loaded, num_blocks=30, block_size=4, max_sequences=4, max_model_len=40)
    engine = Engine(
        runner if mode is None else WatchedRunner(runner, mode),
        Detokenizer.of(loaded.tokenizer.backend_tokenizer),
        num_blocks=30,
        block_size=4,
        max_batched_tokens=9,
        max_sequences=4,
        max_model_len=40,
        overlap=overlap,
    )
    results: dict[str, list[int]] = {}
    for number in range(6):
        prompt = [rng.randrange(PAD + 1, VOCABULARY) for _ in range(rng.randint(1, 14))]
        sampling = replace(KINDS[number % 3], max_tokens=rng.randint(1, 9), seed=number)
        engine.add([Sequence(str(number), prompt, sampling, arrival=number)])
        results |= {finished.sequence_id: finished.tokens for finished in engine.step().finished}
    while engine.has_work:
        results |= {finished.sequence_id: finished.tokens for finished in engine.step().finished}
        engine.check()
    return [results[str(number)] for number in range(6)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_overlapping_without_waiting(architecture: str, mode: NoWaiting) -> None:
    loaded = load(architecture)
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # pytest shows it when the test fails
    assert outputs(loaded, seed, overlap=True, mode=mode) == outputs(loaded, seed, overlap=False, mode=None)


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.tolist(),
        lambda x: bool(x[0] > 0),
        lambda x: x[x > 0],
        lambda x: torch.where(x > 0),
        lambda _: torch.tensor([1, 2]),
        lambda x: x.sum().item(),
    ],
)
def test_waiting_is_noticed(wait: object) -> None:
    x = torch.arange(3.0)
    with pytest.raises(WaitedError), NoWaiting():
        wait(x)  # pyright: ignore[reportCallIssue]
