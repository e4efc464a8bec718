"""Greedy decoding twice: by transformers' generate, and by the engine over its paged cache."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import torch
from transformers import PreTrainedModel

from headrace.kernels import Implementation
from headrace.worker.engine.detokenizer import Detokenizer
from headrace.worker.engine.engine import Engine
from headrace.worker.engine.sequence import SamplingParams, Sequence
from headrace.worker.model.load.loader import LoadedModel
from headrace.worker.model.run.recording import Recorder
from headrace.worker.model.run.runner import ModelRunner

LEAST_GAP = 1e-3
"""Of the best two logits at each step of a case. Rounding, some 1e-5, decides the order of nearer ones, so
such a prompt has no one right answer and is not used."""


@dataclass(frozen=True)
class Case:
    """A prompt and what generate continues it with, without the end-of-sequence token."""

    prompt: list[int]
    expected: list[int]


def reference(model: PreTrainedModel, prompt: list[int], max_tokens: int, eos: int) -> Case | None:
    """What ``generate`` gives; None if some step of it is too close to call."""
    inputs = torch.tensor([prompt])
    with torch.inference_mode():
        result = model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=eos,
            pad_token_id=eos,
            output_logits=True,
            return_dict_in_generate=True,
        )
    best = torch.stack([logits[0] for logits in result.logits]).topk(2).values
    if (best[:, 0] - best[:, 1]).min() < LEAST_GAP:
        return None
    output = result.sequences[0, len(prompt) :].tolist()
    return Case(prompt, output[: output.index(eos)] if eos in output else output)


def reference_cases(
    model: PreTrainedModel,
    prompts: Iterator[list[int]],
    count: int,
    *,
    max_tokens: int,
    eos: int,
    to_the_end: bool = False,
) -> list[Case]:
    """The first ``count`` cases with one right answer; ``to_the_end``, of those that have ``max_tokens``."""
    cases: list[Case] = []
    for prompt in islice(prompts, 100 * count):
        case = reference(model, prompt, max_tokens, eos)
        if case is not None and (len(case.expected) == max_tokens or not to_the_end):
            cases.append(case)
        if len(cases) == count:
            return cases
    raise AssertionError(f"of {100 * count} prompts, {len(cases)} have one right answer")


def random_prompts(rng: random.Random, tokens: Callable[[], int], longest: int) -> Iterator[list[int]]:
    """Prompts of random lengths; every third begins like the first one."""
    first = [tokens() for _ in range(longest)]
    yield first
    while True:
        own = [tokens() for _ in range(rng.randint(1, longest))]
        yield own
        yield [tokens() for _ in range(rng.randint(1, longest))]
        yield first[: rng.randint(longest // 2, longest)] + own[: longest // 4]


@dataclass
class Outcome:
    """What the engine made of the cases, in their order."""

    outputs: list[list[int]]
    preemptions: int = 0
    cached_tokens: int = 0
    batch_sizes: set[int] = field(default_factory=set[int])


def serve(
    loaded: LoadedModel,
    cases: list[Case],
    *,
    max_tokens: int,
    block_size: int = 16,
    max_batched_tokens: int = 512,
    num_blocks: int | None = None,
    prefix_caching: bool = True,
    overlap: bool = False,
    stagger: int = 0,
    implementation: Implementation | None = None,
    max_sequences: int | None = None,
    recorder: Recorder | None = None,
    kv_dtype: torch.dtype | None = None,
) -> Outcome:
    """Serve all cases in one engine, each ``stagger`` iterations after the one before.

    Without ``num_blocks`` the cache holds all of them at once, without ``max_sequences`` the batch does. With
    a ``recorder``, decode steps are replayed.
    """
    longest = max(len(case.prompt) for case in cases) + max_tokens
    if num_blocks is None:
        num_blocks = len(cases) * (-(-longest // block_size) + 1)
    max_model_len = min(longest, num_blocks * block_size)
    runner = ModelRunner(
        loaded,
        num_blocks=num_blocks,
        block_size=block_size,
        max_sequences=max_sequences or len(cases),
        max_model_len=max_model_len,
        kv_dtype=kv_dtype,
        implementation=implementation,
    )
    if recorder is not None:
        runner.record_graphs(recorder, lambda _done, _of: None)
    engine = Engine(
        runner,
        Detokenizer.of(loaded.tokenizer.backend_tokenizer),
        num_blocks=num_blocks,
        block_size=block_size,
        max_batched_tokens=max_batched_tokens,
        max_sequences=max_sequences or len(cases),
        max_model_len=max_model_len,
        prefix_caching=prefix_caching,
        overlap=overlap,
    )
    sampling = SamplingParams(max_tokens=max_tokens, stop_tokens=loaded.info.eos_ids)
    arrivals = [
        Sequence(str(index), list(case.prompt), sampling, arrival=index) for index, case in enumerate(cases)
    ]
    outcome = Outcome([[] for _ in cases])
    iteration = 0
    while arrivals or engine.has_work:
        while arrivals and (not stagger or iteration % stagger == 0):
            engine.add([arrivals.pop(0)])
            if stagger:
                break
        step = engine.step()
        engine.check()
        iteration += 1
        assert iteration < 10_000, "the engine makes no progress"
        outcome.preemptions += len(step.preempted)
        outcome.batch_sizes.add(len(step.chunks))
        for finished in step.finished:
            outcome.outputs[int(finished.sequence_id)] = finished.tokens
            outcome.cached_tokens += finished.cached_tokens
    return outcome
