"""Any arrivals, lengths, cancellations, pool sizes: invariants hold, all finish, nothing repeats."""

from dataclasses import dataclass, field

from fake_runner import FakeRunner, byte_detokenizer, continuation
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.worker.engine.engine import Engine
from headrace.worker.engine.sequence import SamplingParams, Sequence
from headrace.worker.engine.step import Finished, Step

DETOKENIZER = byte_detokenizer()
VOCABULARY = 6  # small, so that stop tokens occur and prefixes are shared


@dataclass
class Job:
    arrives: int
    sequence: Sequence
    cancelled_at: int | None
    resumed: int = 0


@dataclass
class Reader:
    """Puts a request's deltas together and fails on a gap or a repeat."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finished: Finished | None = None

    def read(self, step: Step, sequence_id: str) -> None:
        for delta in step.deltas:
            if delta.sequence_id == sequence_id:
                assert self.finished is None
                assert delta.tokens
                assert delta.pos == len(self.text)
                if delta.seq != len(self.tokens):  # text alone, with the last token once more
                    assert delta.text
                    assert delta.seq == len(self.tokens) - 1
                    assert delta.tokens == self.tokens[-1:]
                self.tokens[delta.seq :] = delta.tokens
                self.text += delta.text
        for finished in step.finished:
            if finished.sequence_id == sequence_id:
                assert self.finished is None
                self.finished = finished


@st.composite
def jobs(draw: st.DrawFn, longest: int) -> list[Job]:
    made: list[Job] = []
    for number in range(draw(st.integers(1, 8))):
        base = draw(st.sampled_from([[1, 2, 3, 4, 5, 0, 1, 2], [5, 5, 5, 5]]))
        prompt = [*base, *draw(st.lists(st.integers(0, VOCABULARY - 1), max_size=6))]
        prompt = prompt[: min(draw(st.integers(1, 14)), longest - 1)]
        stops = draw(st.sampled_from([frozenset(), frozenset({3})]))
        sampling = SamplingParams(max_tokens=draw(st.integers(1, 12)), stop_tokens=stops)
        sequence = Sequence(f"r{number}", prompt, sampling, priority=draw(st.integers(0, 2)), arrival=number)
        resumed = draw(st.integers(0, 3))
        sequence.output = uninterrupted(sequence, longest)[:resumed]
        sequence.logged_text = ""
        made.append(
            Job(
                arrives=draw(st.integers(0, 10)),
                sequence=sequence,
                cancelled_at=draw(st.none() | st.integers(0, 25)),
                resumed=len(sequence.output),
            )
        )
    return made


def uninterrupted(sequence: Sequence, max_model_len: int) -> list[int]:
    limit = min(sequence.sampling.max_tokens, max_model_len - len(sequence.prompt))
    tokens = continuation(sequence.prompt, limit, VOCABULARY)
    for at, token in enumerate(tokens):
        if token in sequence.sampling.stop_tokens:
            return tokens[:at]
    return tokens


@given(st.data(), st.integers(1, 5), st.integers(1, 12), st.integers(1, 4), st.booleans(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_everybody_is_served_whatever_comes(
    data: st.DataObject, block_size: int, budget: int, max_sequences: int, caching: bool, overlap: bool
) -> None:
    longest = data.draw(st.integers(2, 24))
    num_blocks = -(-longest // block_size) + data.draw(st.integers(0, 6))
    runner = FakeRunner(block_size, VOCABULARY)
    engine = Engine(
        runner,
        DETOKENIZER,
        num_blocks=num_blocks,
        block_size=block_size,
        max_batched_tokens=budget,
        max_sequences=max_sequences,
        max_model_len=longest,
        prefix_caching=caching,
        overlap=overlap,
    )
    todo = data.draw(jobs(longest))
    expected = {job.sequence.id: uninterrupted(job.sequence, longest) for job in todo}
    readers = {job.sequence.id: Reader(tokens=list(job.sequence.output)) for job in todo}
    time = 0
    while engine.has_work or any(job.arrives >= time for job in todo):
        engine.add([job.sequence for job in todo if job.arrives == time])
        engine.cancel({job.sequence.id: "cancelled" for job in todo if job.cancelled_at == time})
        engine.check()
        step = engine.step()
        engine.check()
        assert sum(chunk.length for chunk in step.chunks) <= budget
        assert len({chunk.sequence.id for chunk in step.chunks}) == len(step.chunks) <= max_sequences
        for name, reader in readers.items():
            reader.read(step, name)
        time += 1
        assert time < 5_000, "somebody starves"

    assert engine.status.blocks_free == num_blocks
    for job in todo:
        name, reader = job.sequence.id, readers[job.sequence.id]
        assert reader.finished is not None
        assert reader.finished.tokens == reader.tokens
        assert reader.finished.text == reader.text == DETOKENIZER.decode(reader.tokens)
        if reader.finished.reason == "cancelled":
            assert reader.tokens == expected[name][: len(reader.tokens)]
        else:
            assert reader.tokens == expected[name]
            stopped = len(reader.tokens) < job.sequence.max_length - len(job.sequence.prompt)
            assert reader.finished.reason == ("stop" if stopped else "length")


@given(st.data(), st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_schedule_does_not_change_output(data: st.DataObject, budget: int) -> None:
    prompts = data.draw(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=9), min_size=1, max_size=5))
    overlapping = data.draw(st.booleans())
    engine = Engine(
        FakeRunner(2, VOCABULARY),
        DETOKENIZER,
        num_blocks=9,
        block_size=2,
        max_batched_tokens=budget,
        max_sequences=4,
        max_model_len=18,
        overlap=overlapping,
    )
    engine.add(
        Sequence(f"r{at}", prompt, SamplingParams(max_tokens=8), arrival=at)
        for at, prompt in enumerate(prompts)
    )
    outputs: dict[str, list[int]] = {}
    while engine.has_work:
        for finished in engine.step().finished:
            outputs[finished.sequence_id] = finished.tokens
    assert outputs == {f"r{at}": continuation(prompt, 8, VOCABULARY) for at, prompt in enumerate(prompts)}
