"""An iteration that the device has no memory for is tried once more at half its size, and nothing is lost."""

from dataclasses import dataclass, field

import pytest
from fake_runner import FakeLaunched, FakeRunner, byte_detokenizer, continuation
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.worker.engine.engine import Engine
from headrace.worker.engine.errors import DeviceFailure, OutOfMemory
from headrace.worker.engine.iteration import Iteration
from headrace.worker.engine.sequence import SamplingParams, Sequence

DETOKENIZER = byte_detokenizer()
BLOCK_SIZE = 2


@dataclass
class ScarceRunner:
    """Has memory for so many tokens in each launch, one after the other; for any number after the last.

    A launch that fails has spoiled the K and V of its own tokens, as an interrupted forward pass may.
    """

    limits: list[int]
    runner: FakeRunner = field(default_factory=lambda: FakeRunner(BLOCK_SIZE))
    launched: list[int] = field(default_factory=list)

    def launch(self, iteration: Iteration) -> FakeLaunched:
        self.launched.append(iteration.num_tokens)
        if self.limits and self.limits.pop(0) < iteration.num_tokens:
            for chunk in iteration.chunks:
                for position in range(chunk.start, chunk.start + chunk.length):
                    block = chunk.sequence.block_table[position // BLOCK_SIZE]
                    self.runner.cells[block, position % BLOCK_SIZE] = -1
            raise OutOfMemory("not enough")
        return self.runner.launch(iteration)


def make_engine(runner: ScarceRunner, *, overlap: bool = False, num_blocks: int = 24) -> Engine:
    return Engine(
        runner,
        DETOKENIZER,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_batched_tokens=12,
        max_sequences=4,
        max_model_len=24,
        overlap=overlap,
    )


def run_to_the_end(engine: Engine) -> dict[str, list[int]]:
    outputs: dict[str, list[int]] = {}
    while engine.has_work:
        for finished in engine.step().finished:
            outputs[finished.sequence_id] = finished.tokens
        engine.check()
    return outputs


def test_half_is_tried_and_the_rest_follows() -> None:
    runner = ScarceRunner([5])
    engine = make_engine(runner)
    engine.add([Sequence("a", list(range(10)), SamplingParams(max_tokens=2))])
    step = engine.step()
    engine.check()
    assert [chunk.length for chunk in step.chunks] == [5]
    assert run_to_the_end(engine) == {"a": continuation(list(range(10)), 2)}
    assert runner.launched == [10, 5, 5, 1]


@given(st.data(), st.booleans(), st.integers(12, 24))
@settings(max_examples=200, deadline=None)
def test_output_is_the_same_wherever_memory_was_short(
    data: st.DataObject, overlap: bool, num_blocks: int
) -> None:
    # Every other launch has room enough, so that the second try always does.
    short = data.draw(st.lists(st.integers(0, 12), max_size=12))
    runner = ScarceRunner([limit for one in short for limit in (one, 12)])
    engine = make_engine(runner, overlap=overlap, num_blocks=num_blocks)
    prompts = data.draw(
        st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=12), min_size=1, max_size=6)
    )
    for number, prompt in enumerate(prompts):
        engine.add([Sequence(str(number), prompt, SamplingParams(max_tokens=6), arrival=number)])
    expected = {str(number): continuation(prompt, 6) for number, prompt in enumerate(prompts)}
    assert _run_through(engine) == expected
    assert engine.status.blocks_free == num_blocks


def _run_through(engine: Engine) -> dict[str, list[int]]:
    """To the end, past steps that were out of memory twice."""
    outputs: dict[str, list[int]] = {}
    while engine.has_work:
        try:
            step = engine.step()
        except OutOfMemory:
            engine.check()
            continue
        engine.check()
        outputs |= {finished.sequence_id: finished.tokens for finished in step.finished}
    return outputs


@pytest.mark.parametrize("overlap", [False, True])
def test_a_second_failure_ends_the_step_and_leaks_nothing(overlap: bool) -> None:
    runner = ScarceRunner([12, 0, 0])
    engine = make_engine(runner, overlap=overlap)
    prompts = {"a": [1, 2, 3], "b": [4, 5, 6, 7]}
    engine.add(Sequence(name, prompt, SamplingParams(max_tokens=5)) for name, prompt in prompts.items())
    engine.step()
    with pytest.raises(OutOfMemory, match="not enough"):
        engine.step()
    engine.check()
    engine.cancel({"a": "cancelled"})
    outputs = run_to_the_end(engine)
    assert outputs["b"] == continuation(prompts["b"], 5)
    assert engine.status.blocks_free == engine.status.blocks_total


def test_a_broken_device_is_not_tried_again() -> None:
    class BrokenRunner:
        launches = 0

        def launch(self, iteration: Iteration) -> FakeLaunched:
            del iteration
            self.launches += 1
            raise DeviceFailure("an illegal memory access was encountered")

    runner = BrokenRunner()
    engine = Engine(
        runner,
        DETOKENIZER,
        num_blocks=8,
        block_size=2,
        max_batched_tokens=8,
        max_sequences=2,
        max_model_len=16,
    )
    engine.add([Sequence("a", [1])])
    with pytest.raises(DeviceFailure, match="illegal memory access"):
        engine.step()
    assert runner.launches == 1
