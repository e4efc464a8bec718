"""What a watcher is told of the engine is true, and bounded."""

import random
from collections import Counter

from fake_runner import FakeRunner, byte_detokenizer

from headrace.worker.engine.engine import Engine
from headrace.worker.engine.sequence import SamplingParams, Sequence
from headrace.worker.engine.snapshot import MAX_CELLS, MAX_SEQUENCES, Snapshot


def _engine(num_blocks: int, max_sequences: int = 4, budget: int = 8) -> Engine:
    return Engine(
        FakeRunner(4),
        byte_detokenizer(),
        num_blocks=num_blocks,
        block_size=4,
        max_batched_tokens=budget,
        max_sequences=max_sequences,
        max_model_len=min(256, num_blocks * 4),
    )


def _sequence(name: str, prompt: list[int], max_tokens: int = 8, arrival: int = 0) -> Sequence:
    return Sequence(id=name, prompt=prompt, sampling=SamplingParams(max_tokens=max_tokens), arrival=arrival)


def _states(snapshot: Snapshot) -> dict[str, tuple[str, int, int]]:
    return {item.id: (item.state, item.computed, item.output) for item in snapshot.sequences}


def test_a_sequence_is_followed_from_waiting_through_prefill_and_decode() -> None:
    engine = _engine(64, max_sequences=1)
    engine.add([_sequence("first", list(range(20)), 3), _sequence("second", [200] * 5, arrival=1)])
    assert _states(engine.snapshot())["first"] == ("waiting", 0, 0)
    engine.step()
    assert _states(engine.snapshot()) == {"first": ("prefill", 8, 0), "second": ("waiting", 0, 0)}
    engine.step()
    engine.step()
    assert _states(engine.snapshot())["first"] == ("decode", 20, 1)
    engine.step()
    assert _states(engine.snapshot())["first"] == ("decode", 21, 2)
    engine.step()
    assert _states(engine.snapshot()) == {"second": ("waiting", 0, 0)}


def test_the_map_shows_whose_each_block_is() -> None:
    engine = _engine(16, budget=64)
    shared = [7] * 8
    engine.add([_sequence("a", [*shared, 1, 2, 3])])
    engine.step()
    engine.add([_sequence("b", [*shared, 4, 5, 6, 7, 8], arrival=1)])
    engine.step()
    snapshot = engine.snapshot()
    assert [item.id for item in snapshot.sequences] == ["a", "b"]
    assert Counter(snapshot.block_map) == {"=": 2, "A": 1, "B": 2, ".": 11}
    assert [item.blocks for item in snapshot.sequences] == [3, 4]
    assert snapshot.sequences[1].cached == 8
    engine.cancel({"a": "cancelled", "b": "cancelled"})
    kept = Counter(engine.snapshot().block_map)
    assert set(kept) == {".", "-"}, "freed blocks belong to nobody, and full ones can be found again"
    assert kept["-"] >= 4


def test_it_stays_small_whatever_the_engine_holds() -> None:
    num_blocks = random.randint(5000, 9000)
    engine = _engine(num_blocks, max_sequences=100, budget=10_000)
    engine.add([_sequence(f"s{n}", [n, *range(40)], arrival=n) for n in range(150)])
    engine.step()
    snapshot = engine.snapshot()
    assert len(snapshot.sequences) == MAX_SEQUENCES
    assert {item.state for item in snapshot.sequences} == {"decode"}, "those that run come first"
    assert len(snapshot.block_map) <= MAX_CELLS
    assert len(snapshot.block_map) == -(-num_blocks // snapshot.block_stride)
    assert "*" in snapshot.block_map, "blocks of sequences that are not listed still count as taken"
