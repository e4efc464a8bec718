"""Decode steps that are recorded, padded and replayed give what the same steps give eagerly."""

import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from fake_recorder import FakeRecorder
from tiny_models import EOS, PAD, VOCABULARY, tiny_model, tiny_tokenizer

from headrace.worker.engine.detokenizer import Detokenizer
from headrace.worker.engine.engine import Engine
from headrace.worker.engine.sequence import SamplingParams, Sequence
from headrace.worker.engine.step import Finished
from headrace.worker.model.load.loader import LoadedModel, prepare
from headrace.worker.model.run.decode_graphs import length_bounds, size_ladder
from headrace.worker.model.run.decode_inputs import DecodeBuffers
from headrace.worker.model.run.flat_batch import FlatBatch
from headrace.worker.model.run.kv_tensors import KVTensors, allocate
from headrace.worker.model.run.runner import ModelRunner

MAX_MODEL_LEN = 40


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    model = tiny_model(request.param, seed=11)
    model.set_attn_implementation("headrace")
    return prepare(request.param, model, tiny_tokenizer())


@pytest.fixture(autouse=True)
def poisoned_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of large numbers: whoever reads one that nobody wrote says something else."""

    def allocate_poison(*arguments: object) -> KVTensors:
        kv = allocate(*arguments)  # pyright: ignore[reportArgumentType]
        for tensor in (*kv.keys, *kv.values):
            tensor.fill_(1e3)
        return kv

    monkeypatch.setattr("headrace.worker.model.run.runner.allocate", allocate_poison)


@dataclass
class Run:
    finished: dict[str, Finished]
    recorder: FakeRecorder
    decode_steps: int = 0


def serve(
    loaded: LoadedModel,
    sequences: list[tuple[list[int], SamplingParams]],
    *,
    graphs: bool,
    overlap: bool,
    max_sequences: int = 5,
    num_blocks: int = 24,
) -> Run:
    runner = ModelRunner(
        loaded,
        num_blocks=num_blocks,
        block_size=4,
        max_sequences=max_sequences,
        max_model_len=MAX_MODEL_LEN,
    )
    run = Run({}, FakeRecorder())
    if graphs:
        runner.record_graphs(run.recorder, lambda _done, _of: None)
    engine = Engine(
        runner,
        Detokenizer.of(loaded.tokenizer.backend_tokenizer),
        num_blocks=num_blocks,
        block_size=4,
        max_batched_tokens=16,
        max_sequences=max_sequences,
        max_model_len=MAX_MODEL_LEN,
        overlap=overlap,
    )
    arrivals = [
        Sequence(str(number), list(prompt), sampling, arrival=number)
        for number, (prompt, sampling) in enumerate(sequences)
    ]
    while arrivals or engine.has_work:
        engine.add(arrivals[:1])
        del arrivals[:1]
        step = engine.step()
        engine.check()
        run.decode_steps += bool(step.chunks) and all(
            chunk.length == 1 and chunk.samples for chunk in step.chunks
        )
        run.finished |= {finished.sequence_id: finished for finished in step.finished}
    return run


def random_sequences(rng: random.Random) -> list[tuple[list[int], SamplingParams]]:
    """Greedy and drawn, with penalties and log-probabilities, of all lengths."""
    kinds = [
        SamplingParams(),
        SamplingParams(temperature=1.5, top_k=40),
        SamplingParams(repetition_penalty=1.5, presence_penalty=2.0),
        SamplingParams(logprobs=2),
        SamplingParams(temperature=0.8, logprobs=0),
    ]
    return [
        (
            [rng.randrange(PAD + 1, VOCABULARY) for _ in range(rng.randint(1, 12))],
            replace(
                rng.choice(kinds),
                max_tokens=rng.randint(2, 14),
                seed=number,
                stop_tokens=frozenset({EOS}),
            ),
        )
        for number in range(9)
    ]


@pytest.mark.parametrize("overlap", [False, True])
def test_replayed_decoding_gives_the_same_output(loaded: LoadedModel, overlap: bool) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # pytest shows it when the test fails
    for sequences in (random_sequences(random.Random(seed)), random_sequences(random.Random(seed + 1))):
        eager = serve(loaded, sequences, graphs=False, overlap=False)
        replayed = serve(loaded, sequences, graphs=True, overlap=overlap)
        assert replayed.recorder.replayed == replayed.decode_steps > 5
        for name, expected in eager.finished.items():
            found = replayed.finished[name]
            assert (found.tokens, found.reason) == (expected.tokens, expected.reason)
            if expected.logprobs is not None:
                assert found.logprobs is not None
                assert [logprob for logprob, _ in found.logprobs] == pytest.approx(
                    [logprob for logprob, _ in expected.logprobs], abs=1e-3
                )


def test_preemption_between_replays(loaded: LoadedModel) -> None:
    rng = random.Random(5)
    sequences = [
        ([rng.randrange(PAD + 1, VOCABULARY) for _ in range(9)], SamplingParams(max_tokens=20))
        for _ in range(5)
    ]
    eager = serve(loaded, sequences, graphs=False, overlap=False)
    replayed = serve(loaded, sequences, graphs=True, overlap=True, num_blocks=14)
    outputs = {name: finished.tokens for name, finished in replayed.finished.items()}
    assert outputs == {name: finished.tokens for name, finished in eager.finished.items()}


def test_what_is_recorded() -> None:
    assert size_ladder(1) == [1]
    assert size_ladder(5) == [1, 2, 4, 5]
    assert size_ladder(32) == [1, 2, 4, 8, 16, 24, 32]
    assert size_ladder(200) == [1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), 128, 160, 192, 200]
    assert length_bounds(1024) == [1024]
    assert length_bounds(5000) == [1024, 4096, 5000]


def test_a_batch_padded_in_place() -> None:
    buffers = DecodeBuffers(max_size=8, width=6, padding_slot=8, device=torch.device("cpu"))
    inputs = buffers.inputs(4)
    buffers.fill(_batch(4, width=5, first_block=50), 4)
    buffers.fill(_batch(2, width=2, first_block=10), 4)
    assert inputs.tokens.tolist() == [-1, 101, 0, 0]
    assert inputs.positions.tolist() == [200, 201, 0, 0]
    assert inputs.slot_mapping.tolist() == [300, 301, -1, -1]
    assert inputs.slots.tolist() == [1, 0, 8, 8]
    assert inputs.output_positions.tolist() == [400, 401, 0, 0]
    assert inputs.lengths.tolist() == [5, 6, 0, 0]
    assert inputs.query_start.tolist() == [0, 1, 2, 3, 4]
    assert inputs.block_table[:2, :2].tolist() == [[10, 11], [12, 13]]
    attention = inputs.attention(24)
    assert (attention.max_query, attention.max_length) == (1, 24)
    buffers.clear(4)
    assert inputs.lengths.tolist() == [0, 0, 0, 0]
    assert inputs.slot_mapping.tolist() == [-1, -1, -1, -1]


def _batch(count: int, *, width: int, first_block: int) -> FlatBatch:
    rows = np.arange(count, dtype=np.int64)
    return FlatBatch(
        tokens=np.where(rows == 0, 0, rows + 100),
        positions=rows + 200,
        slot_mapping=rows + 300,
        query_start=np.arange(count + 1, dtype=np.int32),
        lengths=(rows + 5).astype(np.int32),
        block_table=(first_block + np.arange(count * width, dtype=np.int32)).reshape(count, width),
        rows=rows,
        slots=rows[::-1].copy(),
        output_positions=rows + 400,
        pending_rows=np.zeros(1, np.int64),
        pending_slots=np.array([count - 1]),
        max_query=1,
        max_length=count + 4,
    )


def test_a_model_that_cannot_be_recorded_runs_as_before(loaded: LoadedModel) -> None:
    class Refusing:
        def record(self, work: object) -> None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {work}")

    runner = ModelRunner(loaded, num_blocks=4, block_size=4, max_sequences=2, max_model_len=16)
    with pytest.raises(RuntimeError, match="not permitted"):
        runner.record_graphs(Refusing(), lambda _done, _of: None)  # pyright: ignore[reportArgumentType]
    engine = Engine(
        runner,
        Detokenizer.of(loaded.tokenizer.backend_tokenizer),
        num_blocks=4,
        block_size=4,
        max_batched_tokens=16,
        max_sequences=2,
        max_model_len=16,
    )
    engine.add([Sequence("a", [40, 41], SamplingParams(max_tokens=3))])
    while engine.has_work:
        step = engine.step()
    assert len(step.finished[0].tokens) == 3
