"""The engine beside an asynchronous device: the next iteration is under way before the last one's tokens are
read, whatever they turn out to be."""

from deferred_runner import DeferredRunner
from fake_runner import FakeRunner, byte_detokenizer, continuation
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.worker.engine.engine import Engine
from headrace.worker.engine.sequence import SamplingParams, Sequence

DETOKENIZER = byte_detokenizer()
VOCABULARY = 6


def make_engine(runner: DeferredRunner, *, num_blocks: int = 40, budget: int = 8) -> Engine:
    return Engine(
        runner,
        DETOKENIZER,
        num_blocks=num_blocks,
        block_size=runner.runner.block_size,
        max_batched_tokens=budget,
        max_sequences=4,
        max_model_len=24,
        overlap=True,
    )


def test_an_iteration_is_launched_before_the_last_one_is_read() -> None:
    runner = DeferredRunner(FakeRunner(4, VOCABULARY))
    engine = make_engine(runner)
    engine.add([Sequence("a", [1, 2, 3], SamplingParams(max_tokens=3))])
    while engine.has_work:
        engine.step()
    assert runner.events == [
        ("launch", 0),
        ("launch", 1),
        ("collect", 0),
        ("launch", 2),
        ("collect", 1),
        ("collect", 2),
    ]


def test_an_unforeseen_end_wastes_one_token_and_publishes_none_of_it() -> None:
    expected = continuation([1, 2, 3], 12, VOCABULARY)
    stop = expected[4]
    ended = expected.index(stop)
    runner = DeferredRunner(FakeRunner(4, VOCABULARY))
    engine = make_engine(runner)
    engine.add([Sequence("a", [1, 2, 3], SamplingParams(max_tokens=12, stop_tokens=frozenset({stop})))])
    published: list[int] = []
    while engine.has_work:
        step = engine.step()
        engine.check()
        published += [token for delta in step.deltas for token in delta.tokens]
        for finished in step.finished:
            assert (finished.reason, finished.tokens) == ("stop", expected[:ended])
    assert published == expected[:ended]
    assert runner.launches == 1 + ended + 1  # the prompt, each token of the output, and one for nobody


@given(st.data(), st.integers(1, 4), st.integers(14, 30), st.integers(1, 9))
@settings(max_examples=150, deadline=None)
def test_output_is_what_a_synchronous_device_gives(
    data: st.DataObject, block_size: int, num_blocks: int, budget: int
) -> None:
    num_blocks = max(num_blocks, -(-24 // block_size))
    runner = DeferredRunner(FakeRunner(block_size, VOCABULARY))
    engine = make_engine(runner, num_blocks=num_blocks, budget=budget)
    prompt = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12)
    prompts = data.draw(st.lists(prompt, min_size=1, max_size=7))
    cancelled = data.draw(st.dictionaries(st.integers(0, 6), st.integers(0, 20)))
    stops = frozenset({data.draw(st.integers(0, VOCABULARY))})
    arrivals = [
        Sequence(str(number), prompt, SamplingParams(max_tokens=9, stop_tokens=stops), arrival=number)
        for number, prompt in enumerate(prompts)
    ]
    outputs: dict[str, list[int]] = {}
    time = 0
    while arrivals or engine.has_work:
        engine.add(arrivals[:1])
        del arrivals[:1]
        engine.cancel({str(number): "cancelled" for number, when in cancelled.items() if when == time})
        step = engine.step()
        engine.check()
        outputs |= {finished.sequence_id: finished.tokens for finished in step.finished}
        time += 1
    for number, prompt in enumerate(prompts):
        expected = continuation(prompt, 9, VOCABULARY)
        ends = [at for at, token in enumerate(expected) if token in stops]
        expected = expected[: ends[0]] if ends else expected
        found = outputs[str(number)]
        assert found == (expected[: len(found)] if number in cancelled else expected)
    assert engine.status.blocks_free == num_blocks
