"""The two worked examples of docs/architecture.md, as tables."""

from fake_runner import FakeRunner, byte_detokenizer

from headrace.worker.engine.engine import Engine
from headrace.worker.engine.sequence import SamplingParams, Sequence
from headrace.worker.engine.step import Step


def make_engine(runner: FakeRunner, **changes: int | bool) -> Engine:
    settings: dict[str, int | bool] = {
        "num_blocks": 32,
        "block_size": 4,
        "max_batched_tokens": 8,
        "max_sequences": 3,
        "max_model_len": 64,
    }
    return Engine(runner, byte_detokenizer(), **(settings | changes))


def scheduled(step: Step) -> str:
    return ", ".join(f"{chunk.sequence.id} {chunk.length}" for chunk in step.chunks)


def sequence(name: str, prompt: list[int], max_tokens: int, arrival: int) -> Sequence:
    return Sequence(name, prompt, SamplingParams(max_tokens=max_tokens), arrival=arrival)


def test_decode_goes_on_while_a_long_prompt_is_prefilled_in_chunks():
    engine = make_engine(FakeRunner(4))
    a = sequence("A", [1], 3, arrival=0)
    b = sequence("B", list(range(100, 112)), 20, arrival=1)
    c = sequence("C", [7, 8, 9], 20, arrival=2)
    engine.add([a])
    assert scheduled(engine.step()) == "A 1"
    engine.add([b])

    rounds = [
        # scheduled            B computed  B's blocks
        ("A 1, B 7", 7, 2),
        ("A 1, B 5, C 2", 12, 3),
        ("B 1, C 1", 13, 4),
        ("B 1, C 1", 14, 4),
    ]
    for number, (expected, computed, blocks) in enumerate(rounds, 1):
        if number == 2:
            engine.add([c])
        step = engine.step()
        engine.check()
        assert (scheduled(step), b.num_computed, len(b.block_table)) == (expected, computed, blocks)
        assert [finished.sequence_id for finished in step.finished] == (["A"] if number == 2 else [])
        assert len(b.output) == max(0, number - 1)


def test_sequences_with_a_common_prefix_share_its_blocks():
    engine = make_engine(FakeRunner(4), max_batched_tokens=64)
    prefix = list(range(50, 58))  # two blocks
    a = sequence("A", [*prefix, 1, 2], 4, arrival=0)
    b = sequence("B", [*prefix, 3], 9, arrival=1)
    c = sequence("C", [*prefix, 4, 5, 6], 3, arrival=2)
    engine.add([a])
    engine.step()
    engine.add([b])
    engine.step()
    assert a.block_table[:2] == b.block_table[:2]
    assert not set(a.block_table[2:]) & set(b.block_table[2:])
    assert (b.num_cached, a.num_cached) == (8, 0)
    shared, own = a.block_table[:2], a.block_table[2:]

    engine.step()
    engine.add([c])
    step = engine.step()  # A's fourth token
    assert [finished.sequence_id for finished in step.finished] == ["A"]
    assert c.block_table[:2] == b.block_table[:2] == shared
    engine.check()
    # A gave back only what was its own.
    used = set(b.block_table) | set(c.block_table)
    assert engine.status.blocks_free == 32 - len(used)
    assert not set(own) & used
    assert set(shared) <= used

    while engine.has_work:
        engine.step()
        engine.check()
    assert engine.status.blocks_free == 32


def test_tenants_with_different_salt_share_nothing():
    engine = make_engine(FakeRunner(4), max_batched_tokens=64)
    prompt = list(range(50, 62))
    a, b = (Sequence(name, prompt, arrival=at, salt=name.encode()) for at, name in enumerate("AB"))
    engine.add([a])
    engine.step()
    engine.add([b])
    engine.step()
    assert b.num_cached == 0
    assert not set(a.block_table) & set(b.block_table)
