"""Gemma 3 270M, a real model, gives the tokens that transformers' generate gives."""

import random
from dataclasses import dataclass

import pytest
import torch
from parity import Case, reference_cases, serve
from transformers import AutoModelForCausalLM, AutoTokenizer

from headrace.worker.model.load.demo_model import prepare_demo_model
from headrace.worker.model.load.loader import LoadedModel, load_model

pytestmark = pytest.mark.slow

MAX_TOKENS = 8
WINDOW = 512
OPENINGS = [
    "The water mill was built in 1790",
    "To bake bread you need",
    "def fibonacci(n):\n",
    "The three largest rivers of Europe are",
    "In the beginning of the story, a young miller",
    "Question: What is the boiling point of water? Answer:",
    "Das alte Mühlrad dreht sich",
]


@dataclass(frozen=True)
class Served:
    loaded: LoadedModel
    short: list[Case]
    long: Case
    """Its prompt is longer than the sliding window of 15 of the 18 layers."""


@pytest.fixture(scope="module")
def served() -> Served:
    folder = prepare_demo_model()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    eos: int = tokenizer.eos_token_id
    openings = random.sample(OPENINGS, len(OPENINGS))
    prompts = (tokenizer(text).input_ids for text in openings)
    short = reference_cases(plain, prompts, 3, max_tokens=MAX_TOKENS, eos=eos)
    numbers = (
        tokenizer(" ".join(str(random.randrange(1000)) for _ in range(WINDOW))).input_ids for _ in range(9)
    )
    beyond = (ids[: WINDOW + random.randint(10, 60)] for ids in numbers)
    (long,) = reference_cases(plain, beyond, 1, max_tokens=MAX_TOKENS, eos=eos)
    del plain
    return Served(load_model(folder, dtype="float32"), short, long)


def test_alone_and_longer_than_the_window(served: Served) -> None:
    outcome = serve(served.loaded, [served.long], max_tokens=MAX_TOKENS, max_batched_tokens=200)
    assert outcome.outputs == [served.long.expected]


def test_mixed_with_the_chunks_of_a_long_prompt(served: Served) -> None:
    cases = [*served.short, served.long, served.short[0]]
    outcome = serve(served.loaded, cases, max_tokens=MAX_TOKENS, max_batched_tokens=128, stagger=2)
    assert outcome.outputs == [case.expected for case in cases]
    assert max(outcome.batch_sizes) > 1


@pytest.mark.parametrize(
    ("max_batched_tokens", "block_size", "prefix_caching"), [(7, 4, True), (16, 64, False), (512, 16, True)]
)
def test_staggered_arrivals(
    served: Served, max_batched_tokens: int, block_size: int, prefix_caching: bool
) -> None:
    outcome = serve(
        served.loaded,
        served.short,
        max_tokens=MAX_TOKENS,
        block_size=block_size,
        max_batched_tokens=max_batched_tokens,
        prefix_caching=prefix_caching,
        stagger=2,
    )
    assert outcome.outputs == [case.expected for case in served.short]


def test_preempted(served: Served) -> None:
    longest = max(len(case.prompt) for case in served.short) + MAX_TOKENS
    outcome = serve(
        served.loaded,
        served.short,
        max_tokens=MAX_TOKENS,
        block_size=1,
        num_blocks=longest + 12,
        prefix_caching=False,
    )
    assert outcome.outputs == [case.expected for case in served.short]
    assert outcome.preemptions > 0
