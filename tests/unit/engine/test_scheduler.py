"""Who is admitted, who is preempted, and how much more the engine asks for."""

import pytest
from fake_runner import FakeRunner, byte_detokenizer

from headrace.worker.ageing import Ageing
from headrace.worker.engine.engine import Engine
from headrace.worker.engine.sequence import SamplingParams, Sequence

AGEING = Ageing().ms


def make_engine(**changes: int) -> Engine:
    settings = {
        "num_blocks": 8,
        "block_size": 4,
        "max_batched_tokens": 64,
        "max_sequences": 8,
        "max_model_len": 32,
    } | changes
    return Engine(FakeRunner(settings["block_size"]), byte_detokenizer(), **settings, prefix_caching=False)


def sequence(
    name: str, length: int, *, priority: int = 1, arrival: int = 0, max_tokens: int = 20
) -> Sequence:
    return Sequence(
        name, [ord(name)] * length, SamplingParams(max_tokens=max_tokens), priority=priority, arrival=arrival
    )


def names(engine: Engine) -> list[str]:
    return [chunk.sequence.id for chunk in engine.step().chunks]


def test_a_prompt_is_admitted_only_if_all_of_it_fits():
    engine = make_engine(max_batched_tokens=16)
    engine.add([sequence("a", 12, arrival=0), sequence("b", 24, arrival=1)])
    # After a's three blocks five are free: enough for the chunk of b that the budget has left, not for b.
    assert names(engine) == ["a"]
    assert engine.status.waiting == 1


def test_the_least_urgent_latest_sequence_is_preempted_and_comes_back():
    engine = make_engine()
    first, second = sequence("a", 11, arrival=0), sequence("b", 11, arrival=1)
    engine.add([first, second])
    preempted: list[str] = []
    while engine.has_work:
        step = engine.step()
        engine.check()
        preempted += step.preempted
    assert set(preempted) == {"b"}
    assert len(first.output) == len(second.output) == 20


def test_a_high_request_takes_blocks_from_low_ones_but_no_places():
    engine = make_engine(max_sequences=2)
    engine.add([sequence("l", 4, priority=2, arrival=0), sequence("n", 4, priority=1, arrival=1)])
    engine.step()
    engine.add([sequence("h", 4, priority=0, arrival=2)])
    step = engine.step()
    assert step.preempted == []
    assert {chunk.sequence.id for chunk in step.chunks} == {"l", "n"}

    engine = make_engine()
    engine.add([sequence("l", 12, priority=2, arrival=0), sequence("n", 12, priority=1, arrival=1)])
    engine.step()
    engine.add([sequence("h", 8, priority=0, arrival=2), sequence("m", 4, priority=1, arrival=3)])
    step = engine.step()
    engine.check()
    assert step.preempted == ["l"]
    assert {chunk.sequence.id for chunk in step.chunks} == {"n", "h"}
    assert [waiting.id for waiting in engine.waiting] == ["m", "l"]


def test_a_low_one_is_not_preempted_when_that_would_not_be_enough():
    engine = make_engine()
    engine.add([sequence("n", 20, priority=1, arrival=0), sequence("l", 4, priority=2, arrival=1)])
    engine.step()
    engine.add([sequence("h", 24, priority=1, arrival=2)])
    step = engine.step()
    assert step.preempted == []
    assert {chunk.sequence.id for chunk in step.chunks} == {"n", "l"}


def test_no_room_without_a_place_or_while_somebody_as_urgent_waits():
    engine = make_engine(num_blocks=12)
    assert engine.credits(0) == (6, 6, 6)
    engine.add([sequence("a", 20, arrival=0)])
    engine.step()
    assert engine.credits(1)[1:] == (2, 2)
    engine.add([sequence("b", 28, arrival=2)])  # too long for now
    assert engine.step().preempted == []
    for now in (2, AGEING):
        assert engine.credits(now)[0] > 0
        assert engine.credits(now)[1:] == (0, 0)
    assert engine.credits(AGEING + 2) == (0, 0, 0)  # it counts as much as a high one that arrives now

    engine = make_engine(max_sequences=2)
    engine.add([sequence("a", 4, priority=2, arrival=0), sequence("b", 4, arrival=1)])
    engine.step()
    assert engine.credits(1) == (0, 0, 0)


def test_room_counts_the_blocks_of_whoever_may_be_displaced():
    engine = make_engine(num_blocks=8)
    engine.add([sequence("l", 20, priority=2, arrival=0)])
    engine.step()
    room = engine.credits(1)
    assert room[0] == room[1] > room[2] == 0
    engine.add([sequence("h", 16, priority=0, arrival=2)])
    assert engine.step().preempted == ["l"]
    assert engine.credits(2)[2] == 0


@pytest.mark.parametrize("now", [0, AGEING, 2 * AGEING])
@pytest.mark.parametrize("running", range(5))
def test_whoever_room_was_offered_to_is_admitted(running: int, now: int):
    """In the next iteration, each of them, as long as prompts are typical."""
    for priority in range(3):
        for offered in range(3):
            engine = make_engine(num_blocks=18, max_sequences=6)
            engine.add(sequence(chr(number), 12, max_tokens=1) for number in range(40))
            while engine.has_work:
                engine.step()
            engine.add(sequence(chr(number), 12, priority=priority) for number in range(running))
            engine.step()
            room = engine.credits(now)[offered]
            engine.add(
                sequence(chr(number), 12, priority=offered, arrival=now) for number in range(9 - room, 9)
            )
            engine.step()
            assert engine.status.running >= room
            assert all(waiting.priority > offered for waiting in engine.waiting)


def test_a_request_that_is_replaced_or_dropped_leaves_nothing_behind():
    engine = make_engine()
    old, new = sequence("a", 5, arrival=0), sequence("a", 5, arrival=1)
    engine.add([old])
    engine.step()
    engine.add([new])
    step = engine.step()
    assert [delta.sequence_id for delta in step.deltas] == ["a"]
    assert old.block_table == []
    engine.drop({"a": new.epoch + 1, "b": 0})  # other claims
    assert engine.status.running == 1
    engine.drop({"a": new.epoch})
    engine.check()
    assert engine.status.blocks_free == 8
    assert not engine.has_work
