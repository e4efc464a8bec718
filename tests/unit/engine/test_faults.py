"""A sequence whose computation raises ends with an error; every other one gets its undisturbed output."""

import logging
from dataclasses import dataclass, field
from typing import Any

import pytest
from deferred_runner import DeferredRunner
from fake_runner import FakeRunner, byte_detokenizer, continuation
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.worker.engine.detokenizer import Detokenizer, TextStream
from headrace.worker.engine.engine import Engine
from headrace.worker.engine.errors import DeviceFailure, OutOfMemory, WorkerFault
from headrace.worker.engine.faults import MAX_FAULTS_IN_A_ROW
from headrace.worker.engine.iteration import Iteration
from headrace.worker.engine.sequence import SamplingParams, Sequence
from headrace.worker.engine.step import Finished

BLOCK_SIZE = 2
DETOKENIZER = byte_detokenizer()


@dataclass
class FaultyRunner:
    """Raises for iterations with a chunk of certain sequences, from a position in their tokens on.

    Like a forward pass that is broken off, it leaves nothing right of what the iteration was to write.
    """

    faulty: dict[str, int]
    runner: Any = field(default_factory=lambda: FakeRunner(BLOCK_SIZE))
    error: type[Exception] = IndexError
    launches: int = 0

    @property
    def cells(self) -> dict[tuple[int, int], int]:
        return getattr(self.runner, "runner", self.runner).cells

    def launch(self, iteration: Iteration) -> Any:
        self.launches += 1
        for chunk in iteration.chunks:
            reached = self.faulty.get(chunk.sequence.id)
            if reached is not None and chunk.start + chunk.length > reached:
                self._spoil(iteration)
                raise self.error(f"row of {chunk.sequence.id} is out of range")
        return self.runner.launch(iteration)

    def _spoil(self, iteration: Iteration) -> None:
        if not isinstance(self.runner, FakeRunner):
            return  # what it has not computed yet would be spoiled, too
        for chunk in iteration.chunks:
            for position in range(chunk.start, chunk.start + chunk.length):
                block = chunk.sequence.block_table[position // BLOCK_SIZE]
                self.cells[block, position % BLOCK_SIZE] = -1


def make_engine(runner: Any, *, overlap: bool = False, detokenizer: Detokenizer = DETOKENIZER) -> Engine:
    return Engine(
        runner,
        detokenizer,
        num_blocks=40,
        block_size=BLOCK_SIZE,
        max_batched_tokens=16,
        max_sequences=MAX_FAULTS_IN_A_ROW + 2,
        max_model_len=30,
        overlap=overlap,
    )


def run_to_the_end(engine: Engine) -> dict[str, Finished]:
    finished: dict[str, Finished] = {}
    while engine.has_work:
        for one in engine.step().finished:
            assert one.sequence_id not in finished, "an end is reported once"
            finished[one.sequence_id] = one
        engine.check()
    return finished


PROMPTS = st.lists(st.lists(st.integers(0, 255), min_size=1, max_size=12), min_size=2, max_size=6)


@given(st.data(), PROMPTS, st.booleans(), st.sampled_from([IndexError, ValueError, RuntimeError]))
@settings(max_examples=200, deadline=None)
def test_only_those_at_fault_end_with_an_error(
    data: st.DataObject, prompts: list[list[int]], overlap: bool, error: type[Exception]
) -> None:
    names = [f"s{number}" for number in range(len(prompts))]
    faulty = data.draw(st.dictionaries(st.sampled_from(names), st.integers(0, 18), max_size=3))
    runner = FaultyRunner(
        faulty, DeferredRunner(FakeRunner(BLOCK_SIZE)) if overlap else FakeRunner(BLOCK_SIZE)
    )
    runner.error = error
    engine = make_engine(runner, overlap=overlap)
    engine.add(
        Sequence(name, prompt, SamplingParams(max_tokens=8))
        for name, prompt in zip(names, prompts, strict=True)
    )
    finished = run_to_the_end(engine)
    for name, prompt in zip(names, prompts, strict=True):
        expected = continuation(prompt, 8)
        # The last output token is never computed: the sequence ends with it.
        fails = name in faulty and faulty[name] < len(prompt) + 7
        if fails:
            assert finished[name].reason == "error"
            assert finished[name].error_code == "internal_error"
            assert error.__name__ in (finished[name].error_message or "")
            # Everything that was sampled before is delivered.
            assert finished[name].tokens == expected[: max(0, faulty[name] - len(prompt) + 1)]
        else:
            assert (finished[name].reason, finished[name].tokens) == ("length", expected)
    assert engine.status.blocks_free == engine.status.blocks_total


def test_one_of_many_is_found_in_few_launches(caplog: pytest.LogCaptureFixture) -> None:
    runner = FaultyRunner({"s5": 0})
    engine = make_engine(runner)
    engine.add(Sequence(f"s{number}", [number], SamplingParams(max_tokens=2)) for number in range(8))
    with caplog.at_level(logging.INFO):
        step = engine.step()
    assert step.failed == ["s5"]
    assert runner.launches == 1 + 2 + 2 + 2
    (line,) = caplog.messages
    assert line == (
        "request s5: ended with an error: computing its tokens 0 to 1 raised IndexError: "
        "row of s5 is out of range; 7 other requests go on"
    )
    assert caplog.records[0].exc_info is None, "no traceback where a line says it"


@pytest.mark.parametrize("count", [MAX_FAULTS_IN_A_ROW, MAX_FAULTS_IN_A_ROW + 2])
def test_what_fails_for_everybody_is_nobodys_fault(count: int) -> None:
    runner = FaultyRunner({f"s{number}": 0 for number in range(count)})
    engine = make_engine(runner)
    engine.add(Sequence(f"s{number}", [number], SamplingParams(max_tokens=2)) for number in range(count))
    with pytest.raises(WorkerFault, match=f"{MAX_FAULTS_IN_A_ROW} requests in a row"):
        engine.step()
    assert runner.launches <= 4 * MAX_FAULTS_IN_A_ROW


def test_a_worker_that_fails_every_request_stops_after_a_few() -> None:
    runner = FaultyRunner({f"s{number}": 0 for number in range(100)})
    engine = make_engine(runner)
    ended = 0
    with pytest.raises(WorkerFault):
        for number in range(100):
            engine.add([Sequence(f"s{number}", [1], SamplingParams(max_tokens=2))])
            ended += len(engine.step().finished)
    assert ended == MAX_FAULTS_IN_A_ROW - 1


def test_any_success_in_between_shows_that_the_worker_is_sound() -> None:
    runner = FaultyRunner({f"bad{number}": 0 for number in range(100)})
    engine = make_engine(runner)
    for number in range(3 * MAX_FAULTS_IN_A_ROW):
        bad = Sequence(f"bad{number}", [1], SamplingParams(max_tokens=2))
        engine.add([bad, Sequence(f"good{number}", [2], SamplingParams(max_tokens=1))])
        ends = {one.sequence_id: one.reason for one in engine.step().finished}
        assert ends == {f"bad{number}": "error", f"good{number}": "length"}


@pytest.mark.parametrize("error", [DeviceFailure, OutOfMemory])
def test_a_failure_of_the_device_is_not_looked_for_in_requests(error: type[Exception]) -> None:
    runner = FaultyRunner({"a": 0}, error=error)
    engine = make_engine(runner)
    engine.add([Sequence("a", [1]), Sequence("b", [2])])
    with pytest.raises(error):
        engine.step()
    assert runner.launches == (1 if error is DeviceFailure else 2)


class Panic(BaseException):
    """What a panic in the tokenizer library's Rust code is to Python: no Exception."""


class PanickingStream(TextStream):
    """Panics at a token, or at the end."""

    def push(self, token: int) -> str:
        if token == self.panics_at:
            raise Panic("index out of bounds")
        return super().push(token)

    def flush(self) -> str:
        if self.panics_at == -1:
            raise Panic("index out of bounds")
        return super().flush()


@dataclass(slots=True)
class PanickingDetokenizer(Detokenizer):
    panics: dict[int, int] = field(default_factory=dict)
    """By the first token of the prompt, the token at which its stream panics; -1 for the end."""

    def stream(self, prompt: list[int], stop: tuple[str, ...] = ()) -> TextStream:
        stream = Detokenizer.stream(self, prompt, stop)
        if prompt and prompt[0] in self.panics:
            stream.__class__ = PanickingStream
            stream.panics_at = self.panics[prompt[0]]
        return stream


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("at", [0, 3, -1])
def test_a_detokenizer_that_panics_ends_its_own_request_only(at: int, overlap: bool) -> None:
    bad, good = [7, 1], [8, 1]
    expected = continuation(bad, 6)
    detokenizer = PanickingDetokenizer(
        DETOKENIZER.tokenizer, DETOKENIZER.byte_tokens, DETOKENIZER.silent_tokens
    )
    detokenizer.panics = {7: -1 if at < 0 else expected[at]}
    runner = DeferredRunner(FakeRunner(BLOCK_SIZE)) if overlap else FakeRunner(BLOCK_SIZE)
    engine = make_engine(runner, overlap=overlap, detokenizer=detokenizer)
    engine.add(
        [
            Sequence("bad", bad, SamplingParams(max_tokens=6)),
            Sequence("good", good, SamplingParams(max_tokens=6)),
        ]
    )
    finished = run_to_the_end(engine)
    assert (finished["bad"].reason, finished["bad"].error_code) == ("error", "internal_error")
    assert finished["bad"].tokens == (expected if at < 0 else expected[: at + 1])
    assert (finished["good"].reason, finished["good"].tokens) == ("length", continuation(good, 6))


def test_a_resumed_request_that_cannot_be_detokenized_keeps_the_text_that_was_delivered() -> None:
    detokenizer = PanickingDetokenizer(
        DETOKENIZER.tokenizer, DETOKENIZER.byte_tokens, DETOKENIZER.silent_tokens
    )
    detokenizer.panics = {7: 50}
    engine = make_engine(FakeRunner(BLOCK_SIZE), detokenizer=detokenizer)
    resumed = Sequence("bad", [7, 1], SamplingParams(max_tokens=6), output=[40, 50], logged_text="ab")
    engine.add([resumed, Sequence("good", [8], SamplingParams(max_tokens=3))])
    finished = run_to_the_end(engine)
    assert (finished["bad"].reason, finished["bad"].tokens, finished["bad"].text) == ("error", [40, 50], "ab")
    assert finished["good"].tokens == continuation([8], 3)
