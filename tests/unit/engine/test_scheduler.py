"""Who is admitted, who is preempted, and how much more the engine asks for."""

from fake_runner import FakeRunner, byte_detokenizer

from headrace.worker.engine.engine import Engine
from headrace.worker.engine.sequence import SamplingParams, Sequence


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


def test_a_waiting_high_priority_request_preempts_running_low_ones_but_not_its_equals():
    engine = make_engine(max_sequences=2)
    engine.add([sequence("l", 4, priority=2, arrival=0), sequence("n", 4, priority=1, arrival=1)])
    engine.step()
    engine.add([sequence("h", 4, priority=0, arrival=2), sequence("m", 4, priority=1, arrival=3)])
    step = engine.step()
    engine.check()
    assert step.preempted == ["l"]
    assert {chunk.sequence.id for chunk in step.chunks} == {"n", "h"}
    assert engine.status.waiting == 2


def test_a_low_one_is_not_preempted_when_that_would_not_be_enough():
    engine = make_engine()
    engine.add([sequence("n", 20, priority=1, arrival=0), sequence("l", 4, priority=2, arrival=1)])
    engine.step()
    engine.add([sequence("h", 24, priority=1, arrival=2)])
    step = engine.step()
    assert step.preempted == []
    assert {chunk.sequence.id for chunk in step.chunks} == {"n", "l"}


def test_no_room_while_somebody_as_urgent_waits():
    engine = make_engine(max_sequences=2)
    assert engine.room() == (2, 2, 2)
    engine.add([sequence("a", 4, arrival=0), sequence("b", 4, arrival=1)])
    engine.step()
    assert engine.room() == (2, 0, 0)  # a high one could take the place of a normal one
    engine.add([sequence("c", 4, arrival=2)])
    assert engine.room() == (2, 0, 0)
    engine.add([sequence("d", 4, priority=0, arrival=3)])
    assert engine.room() == (0, 0, 0)


def test_room_shrinks_with_the_free_blocks_and_is_never_zero_for_an_idle_engine():
    engine = make_engine(max_sequences=8)
    engine.add([sequence("a", 24, arrival=0, max_tokens=2)])
    assert engine.step().number == 1
    assert engine.room()[1] < 3
    while engine.has_work:
        engine.step()
    assert engine.room()[2] >= 1


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
