"""Six architectures served over the paged cache give the tokens that transformers' generate gives."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from parity import Case, random_prompts, reference_cases, serve
from tiny_models import ARCHITECTURES, EOS, PAD, VOCABULARY, WINDOW, save_tiny_model, tiny_model

from headrace.worker.model.load.loader import LoadedModel, load_model

MAX_TOKENS = 12
LONGEST_PROMPT = 40
assert LONGEST_PROMPT > 2 * WINDOW


@dataclass(frozen=True)
class Served:
    """A model as the worker loads it, and what the plain one says to random prompts."""

    loaded: LoadedModel
    cases: list[Case]
    growing: list[Case]
    """Prompts of two blocks, whose sequences grow to five."""


@pytest.fixture(scope="module", params=ARCHITECTURES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    architecture: str = request.param
    seed = random.randrange(2**32)
    print(f"{architecture}, seed {seed}")  # pytest shows it when a test fails
    rng = random.Random(seed)
    plain = tiny_model(architecture, seed)

    def token() -> int:
        return rng.randrange(PAD + 1, VOCABULARY)

    def short_prompts() -> Iterator[list[int]]:
        while True:
            yield [token() for _ in range(7)]

    cases = reference_cases(
        plain, random_prompts(rng, token, LONGEST_PROMPT), 5, max_tokens=MAX_TOKENS, eos=EOS
    )
    growing = reference_cases(plain, short_prompts(), 4, max_tokens=MAX_TOKENS, eos=EOS, to_the_end=True)
    folder = save_tiny_model(architecture, tmp_path_factory.mktemp(architecture), seed=seed)
    return Served(load_model(folder, dtype="float32"), cases, growing)


def begin_alike(cases: list[Case], length: int) -> bool:
    """Whether two prompts begin with the same tokens; mostly two do, unless one has no one right answer."""
    beginnings = [tuple(case.prompt[:length]) for case in cases if len(case.prompt) > length]
    return len(set(beginnings)) < len(beginnings)


def test_alone(served: Served) -> None:
    for case in served.cases:
        assert serve(served.loaded, [case], max_tokens=MAX_TOKENS).outputs == [case.expected]


# Each two of the three settings meet in every combination.
@pytest.mark.parametrize(
    ("max_batched_tokens", "block_size", "prefix_caching"),
    [
        (budget, block_size, (row + column) % 2 == 0)
        for row, budget in enumerate((7, 16, 512))
        for column, block_size in enumerate((4, 16, 64))
    ],
)
def test_mixed_batches_of_staggered_arrivals(
    served: Served, max_batched_tokens: int, block_size: int, prefix_caching: bool
) -> None:
    outcome = serve(
        served.loaded,
        served.cases,
        max_tokens=MAX_TOKENS,
        block_size=block_size,
        max_batched_tokens=max_batched_tokens,
        prefix_caching=prefix_caching,
        stagger=3,
    )
    assert outcome.outputs == [case.expected for case in served.cases]
    if not prefix_caching:
        assert outcome.cached_tokens == 0
    elif block_size == 4 and begin_alike(served.cases, block_size):
        assert outcome.cached_tokens > 0


@pytest.mark.parametrize(("prefix_caching", "overlap"), [(False, False), (True, False), (True, True)])
def test_with_a_pool_so_small_that_sequences_are_preempted(
    served: Served, prefix_caching: bool, overlap: bool
) -> None:
    outcome = serve(
        served.loaded,
        served.growing,
        max_tokens=MAX_TOKENS,
        block_size=4,
        num_blocks=10,
        prefix_caching=prefix_caching,
        overlap=overlap,
    )
    assert outcome.outputs == [case.expected for case in served.growing]
    assert outcome.preemptions > 0


@pytest.mark.parametrize("max_batched_tokens", [7, 512])
def test_with_tokens_that_only_the_device_knows_when_the_next_iteration_is_launched(
    served: Served, max_batched_tokens: int
) -> None:
    outcome = serve(
        served.loaded,
        served.cases,
        max_tokens=MAX_TOKENS,
        max_batched_tokens=max_batched_tokens,
        stagger=2,
        overlap=True,
    )
    assert outcome.outputs == [case.expected for case in served.cases]
    assert max(outcome.batch_sizes) > 1
