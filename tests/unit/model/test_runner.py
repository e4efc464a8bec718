"""Hand-made iterations through a runner give what the plain model computes in one go."""

from dataclasses import replace

import pytest
import torch
from tiny_models import tiny_model, tiny_tokenizer
from transformers import PreTrainedModel

from headrace.worker.engine.iteration import Chunk, Iteration
from headrace.worker.engine.sequence import SampledToken, SamplingParams, Sequence
from headrace.worker.model.load.loader import LoadedModel, prepare
from headrace.worker.model.run.runner import ModelRunner

PROMPT = [40, 41, 42, 100, 101, 102, 7, 8, 9, 200, 300, 5]
OTHER = [9, 9, 8, 350]


@pytest.fixture(scope="module")
def plain() -> PreTrainedModel:
    return tiny_model("mistral", seed=3)


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return prepare("mistral", _served(), tiny_tokenizer())


def _served() -> PreTrainedModel:
    model = tiny_model("mistral", seed=3)
    model.set_attn_implementation("headrace")
    return model


@pytest.fixture
def runner(loaded: LoadedModel) -> ModelRunner:
    return ModelRunner(loaded, num_blocks=16, block_size=4, max_sequences=4, max_model_len=32)


def sequence(
    prompt: list[int], blocks: list[int], slot: int, sampling: SamplingParams | None = None
) -> Sequence:
    made = Sequence("", list(prompt), sampling or SamplingParams())
    made.block_table, made.slot = blocks, slot
    return made


def chunk(of: Sequence, start: int, length: int, *, position: int = 0) -> Chunk:
    known = len(of.prompt) + len(of.output)
    return Chunk(of, start, length, start + length >= known, position, num_blocks=len(of.block_table))


def run(runner: ModelRunner, *chunks: Chunk) -> list[SampledToken]:
    return runner.launch(Iteration(1, list(chunks))).collect()


def logits(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0, -1]


def greedy(model: PreTrainedModel, tokens: list[int]) -> int:
    return int(logits(model, tokens).argmax())


def test_a_prompt_in_chunks_then_its_first_tokens(runner: ModelRunner, plain: PreTrainedModel) -> None:
    made = sequence(PROMPT, [3, 9, 0, 5], slot=1)
    assert run(runner, chunk(made, 0, 7)) == []
    for start, length in ((7, 5), (12, 1), (13, 1)):
        expected = greedy(plain, made.prompt + made.output)
        assert run(runner, chunk(made, start, length)) == [SampledToken(expected)]
        made.output.append(expected)


def test_decode_beside_prefill(runner: ModelRunner, plain: PreTrainedModel) -> None:
    first = sequence(PROMPT, [3, 9, 0, 5], slot=1)
    first.output = [token.token for token in run(runner, chunk(first, 0, 12))]
    second = sequence(OTHER, [1], slot=0)
    tokens = run(runner, chunk(first, 12, 1), chunk(second, 0, 4))
    assert [token.token for token in tokens] == [
        greedy(plain, PROMPT + first.output),
        greedy(plain, OTHER),
    ]


def test_the_next_iteration_is_launched_before_the_first_is_read(
    runner: ModelRunner, plain: PreTrainedModel
) -> None:
    first, second = sequence(PROMPT, [3, 9, 0, 5], slot=1), sequence(OTHER, [1, 2], slot=3)
    one = runner.launch(Iteration(1, [chunk(first, 0, 12), chunk(second, 0, 4)]))
    two = runner.launch(Iteration(2, [chunk(second, 4, 1, position=1), chunk(first, 12, 1, position=1)]))
    a, b = (token.token for token in one.collect())
    assert (a, b) == (greedy(plain, PROMPT), greedy(plain, OTHER))
    assert [token.token for token in two.collect()] == [
        greedy(plain, [*OTHER, b]),
        greedy(plain, [*PROMPT, a]),
    ]


def test_logprobs_are_the_models_and_only_for_whom_asked(runner: ModelRunner, plain: PreTrainedModel) -> None:
    with_two = sequence(PROMPT, [3, 9, 0, 5], 1, SamplingParams(logprobs=2))
    with_its_own = sequence(PROMPT, [4, 6, 7, 8], 2, SamplingParams(logprobs=0))
    without = sequence(OTHER, [1], 0)
    two, own, none = run(runner, chunk(with_two, 0, 12), chunk(with_its_own, 0, 12), chunk(without, 0, 4))
    expected = logits(plain, PROMPT).log_softmax(-1)
    best = expected.topk(2)
    assert two.top is not None
    assert [token for token, _ in two.top] == best.indices.tolist()
    assert [value for _, value in two.top] == pytest.approx(best.values.tolist(), abs=1e-4)
    assert two.logprob == own.logprob == pytest.approx(float(best.values[0]), abs=1e-4)
    assert own.top == []
    assert (none.logprob, none.top) == (None, None)


def test_a_seed_and_a_position_give_the_same_token_in_any_company(runner: ModelRunner) -> None:
    sampling = SamplingParams(temperature=8.0, seed=2**64 - 5, top_k=100, top_p=0.95)
    drawn: list[int] = []
    for seed in range(8):
        seeded = replace(sampling, seed=2**64 - 5 + seed if seed < 5 else seed)
        alone = sequence(PROMPT, [3, 9, 0, 5], 1, seeded)
        (token,) = run(runner, chunk(alone, 0, 12, position=4))
        greedy_neighbour = sequence(OTHER, [1], 0)
        _, again = run(runner, chunk(greedy_neighbour, 0, 4), chunk(alone, 0, 12, position=4))
        assert again == token
        drawn.append(token.token)
    assert len(set(drawn)) > 1


def test_a_penalty_counts_tokens_that_only_the_device_knows(
    runner: ModelRunner, plain: PreTrainedModel
) -> None:
    # A negative penalty is a reward: whatever came first comes again.
    made = sequence(PROMPT, [3, 9, 0, 5], 1, SamplingParams(presence_penalty=-1000.0))
    beside = sequence(OTHER, [1, 2], 0)
    one = runner.launch(Iteration(1, [chunk(beside, 0, 4), chunk(made, 0, 12)]))
    two = runner.launch(Iteration(2, [chunk(beside, 4, 1, position=1), chunk(made, 12, 1, position=1)]))
    neighbour, first = (token.token for token in one.collect())
    assert first == greedy(plain, PROMPT)
    expected = greedy(plain, [*OTHER, neighbour])
    assert [token.token for token in two.collect()] == [expected, first]
    made.output += [first, first]
    assert run(runner, chunk(made, 14, 1, position=2))[0].token == first
