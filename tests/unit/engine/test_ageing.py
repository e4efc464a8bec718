"""Every request gets on under any load of higher priority, queue and batch together, in simulated time."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from fake_runner import FakeRunner, byte_detokenizer, continuation
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.worker.ageing import Ageing
from headrace.worker.engine.engine import Engine
from headrace.worker.engine.sequence import SamplingParams, Sequence

DETOKENIZER = byte_detokenizer()


@dataclass
class SimulatedWorker:
    """A queue and an engine; an iteration takes ``iteration`` milliseconds."""

    engine: Engine
    iteration: int
    ageing: Ageing
    now: int = 0
    queue: list[Sequence] = field(default_factory=list)
    unfinished: dict[str, Sequence] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, list[int]] = field(default_factory=dict)
    preempted: list[str] = field(default_factory=list)
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def submit(self, priority: int, prompt: int, max_tokens: int, name: str | None = None) -> str:
        name = f"r{next(self.numbers)}" if name is None else name
        sampling = SamplingParams(max_tokens=max_tokens)
        sequence = Sequence(name, [7] * prompt, sampling, priority=priority, arrival=self.now)
        self.queue.append(sequence)
        self.unfinished[name] = sequence
        return name

    def due(self, sequence: Sequence) -> int:
        return self.ageing.virtual_arrival(sequence.priority, sequence.arrival)

    def turn(self) -> None:
        """One iteration boundary and one iteration."""
        room = self.engine.credits(self.now)
        taken: list[Sequence] = []
        for sequence in sorted(self.queue, key=self.due):
            if len(taken) < room[self.ageing.class_at(self.due(sequence), self.now)]:
                taken.append(sequence)
        self.queue = [sequence for sequence in self.queue if sequence not in taken]
        self.engine.add(taken)
        step = self.engine.step()
        self.engine.check()
        self.now += self.iteration
        self.preempted += step.preempted
        for finished in step.finished:
            del self.unfinished[finished.sequence_id]
            self.ended[finished.sequence_id] = self.now
            self.outputs[finished.sequence_id] = finished.tokens


def simulated(
    *, iteration: int, ageing: Ageing, max_sequences: int, num_blocks: int, block_size: int, longest: int
) -> SimulatedWorker:
    engine = Engine(
        FakeRunner(block_size),
        DETOKENIZER,
        num_blocks=num_blocks,
        block_size=block_size,
        max_batched_tokens=2 * max_sequences,
        max_sequences=max_sequences,
        max_model_len=longest,
        prefix_caching=False,
        ageing=ageing,
    )
    return SimulatedWorker(engine, iteration, ageing)


def keep_asking(worker: SimulatedWorker, clients: int, ask: Callable[[], str]) -> Callable[[], None]:
    """So many clients who send the next request as soon as the one before has ended."""
    open_requests: list[str] = []

    def go_on() -> None:
        open_requests[:] = [name for name in open_requests if name in worker.unfinished]
        while len(open_requests) < clients:
            open_requests.append(ask())

    return go_on


def test_a_running_low_request_goes_on_undisturbed_while_high_ones_never_stop():
    """Four places, enough blocks, eight clients: it takes as many iterations as alone."""
    worker = simulated(
        iteration=60, ageing=Ageing(), max_sequences=4, num_blocks=200, block_size=16, longest=512
    )
    worker.submit(2, 8, 64, "low")
    go_on = keep_asking(worker, 8, lambda: worker.submit(0, 8, 16))
    while "low" not in worker.ended:
        worker.turn()
        go_on()
    assert worker.preempted == []
    assert worker.ended["low"] <= 66 * worker.iteration


def test_a_low_request_that_comes_to_a_flood_of_high_ones_gets_its_turn():
    """It goes before every high one that comes more than two ageing times after it."""
    ageing = Ageing(1000)
    worker = simulated(
        iteration=10, ageing=ageing, max_sequences=4, num_blocks=200, block_size=16, longest=512
    )
    go_on = keep_asking(worker, 8, lambda: worker.submit(0, 8, 16))
    go_on()
    worker.turn()
    worker.submit(2, 8, 64, "low")
    while "low" not in worker.ended:
        worker.turn()
        go_on()
    # The rest of the four that run then, and of the four that had come before.
    assert worker.ended["low"] <= 2 * ageing.ms + (2 * 20 + 66) * worker.iteration
    assert worker.preempted == []


@pytest.mark.parametrize(
    ("num_blocks", "clients", "prompt", "max_tokens"), [(33, 2, 7, 30), (46, 4, 3, 21), (28, 3, 10, 29)]
)
def test_want_of_blocks_has_a_low_request_computed_again_a_few_times_only(
    num_blocks: int, clients: int, prompt: int, max_tokens: int
) -> None:
    """The cache holds it and little more, and high ones never stop."""
    ageing = Ageing(20_000)
    worker = simulated(
        iteration=10,
        ageing=ageing,
        max_sequences=6,
        num_blocks=num_blocks,
        block_size=4,
        longest=4 * num_blocks,
    )
    low = min(80, 4 * num_blocks - 60)
    worker.submit(2, 20, low, "low")
    worker.turn()
    go_on = keep_asking(worker, clients, lambda: worker.submit(0, prompt, max_tokens))
    while "low" not in worker.ended:
        worker.turn()
        go_on()
    assert worker.preempted.count("low") <= 5
    assert worker.outputs["low"] == continuation([7] * 20, low)


def test_a_high_request_displaces_a_low_one_once_an_ageing_time() -> None:
    ageing = Ageing(1000)
    worker = simulated(iteration=10, ageing=ageing, max_sequences=4, num_blocks=10, block_size=4, longest=40)
    worker.submit(2, 20, 20, "low")
    for _ in range(3):
        worker.turn()
    for name in ("first", "second"):
        worker.submit(0, 24, 8, name)
        while name not in worker.ended:
            worker.turn()
        if name == "first":
            while worker.engine.waiting:
                worker.turn()
            worker.turn()
    # The second waited: what the low one had was not computed for nothing again.
    assert worker.preempted == ["low"]
    assert worker.ended["second"] >= worker.ended["low"]

    # An ageing time later it would be displaced again.
    worker.submit(2, 20, 20, "other")
    for name in ("third", "fourth"):
        worker.turn()
        worker.submit(0, 24, 8, name)
        while name not in worker.ended:
            worker.turn()
        worker.now += ageing.ms
    assert worker.preempted == ["low", "other", "other"]


@given(st.data(), st.integers(1, 4), st.integers(1, 5), st.integers(0, 12), st.integers(0, 2))
@settings(max_examples=150, deadline=None)
def test_every_request_gets_on_under_any_load_of_higher_ones(
    data: st.DataObject, max_sequences: int, block_size: int, spare_blocks: int, priority: int
) -> None:
    """The bound of docs/scheduling.md."""
    longest = data.draw(st.integers(4, 24))
    ageing = Ageing(data.draw(st.sampled_from([10, 100, 400])))
    worker = simulated(
        iteration=data.draw(st.sampled_from([1, 7, 40])),
        ageing=ageing,
        max_sequences=max_sequences,
        num_blocks=-(-longest // block_size) + spare_blocks,
        block_size=block_size,
        longest=longest,
    )
    lengths = st.tuples(st.integers(1, longest - 1), st.integers(1, longest))
    higher = st.integers(0, priority)
    kinds = data.draw(st.lists(st.tuples(higher, lengths), min_size=1, max_size=6))
    choose = itertools.cycle(kinds)

    def another() -> str:
        kind, (prompt, max_tokens) = next(choose)
        return worker.submit(kind, prompt, max_tokens)

    # Those that send at a rate of their own, whatever has become of the requests before, may be too many.
    every = data.draw(st.none() | st.integers(1, 9))
    go_on = keep_asking(worker, data.draw(st.integers(1, 8)), another)
    for number in range(data.draw(st.integers(0, 30))):
        go_on()
        if every is not None and number % every == 0:
            another()
        worker.turn()

    worker.submit(priority, *data.draw(lengths), name="waiting")
    sequence = worker.unfinished["waiting"]
    due = worker.due(sequence)
    before: int | None = None
    for number in itertools.count():
        if before is None and worker.now >= due:
            held = worker.engine.status.running + worker.engine.status.waiting
            before = held + sum(worker.due(other) <= due for other in worker.queue)
        if "waiting" in worker.ended:
            break
        if before is not None:
            assert worker.now <= due + (3 * (before + 1) * longest + 2) * worker.iteration, "it starves"
        go_on()
        if every is not None and number % every == 0:
            another()
        worker.turn()
    assert worker.outputs["waiting"] == continuation(sequence.prompt, len(worker.outputs["waiting"]))
    assert worker.preempted.count("waiting") <= 8
