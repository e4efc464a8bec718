"""The flat batch: which token, position and place in the cache each row is."""

from headrace.worker.engine.iteration import Chunk, Iteration
from headrace.worker.engine.sequence import Sequence
from headrace.worker.model.run.flat_batch import FlatBatchBuilder


def sequence(prompt: list[int], output: list[int], blocks: list[int], slot: int) -> Sequence:
    made = Sequence("", prompt)
    made.output, made.block_table, made.slot = output, blocks, slot
    return made


def chunk(of: Sequence, start: int, length: int, *, samples: bool = True, position: int = 0) -> Chunk:
    return Chunk(of, start, length, samples, position, num_blocks=len(of.block_table))


def builder() -> FlatBatchBuilder:
    return FlatBatchBuilder(block_size=4, max_sequences=4, max_model_len=32)


def test_a_decode_a_finished_prefill_and_an_unfinished_one() -> None:
    decode = sequence([10, 11, 12], [13, 14], [7, 2], slot=2)
    last_chunk = sequence([20, 21, 22, 23, 24, 25], [], [3, 5], slot=0)
    first_chunk = sequence([30, 31, 32, 33, 34], [], [1], slot=1)
    batch = builder().build(
        Iteration(
            1,
            [
                chunk(decode, 4, 1, position=2),
                chunk(last_chunk, 3, 3),
                chunk(first_chunk, 0, 2, samples=False),
            ],
        )
    )
    assert batch.tokens.tolist() == [14, 23, 24, 25, 30, 31]
    assert batch.positions.tolist() == [4, 3, 4, 5, 0, 1]
    assert batch.slot_mapping.tolist() == [2 * 4 + 0, 3 * 4 + 3, 5 * 4 + 0, 5 * 4 + 1, 1 * 4 + 0, 1 * 4 + 1]
    assert batch.query_start.tolist() == [0, 1, 4, 6]
    assert batch.lengths.tolist() == [5, 6, 2]
    assert batch.block_table[:2].tolist() == [[7, 2], [3, 5]]
    assert batch.block_table[2, 0] == 1
    assert batch.rows.tolist() == [0, 3]
    assert batch.slots.tolist() == [2, 0]
    assert batch.output_positions.tolist() == [2, 0]
    assert (batch.max_query, batch.max_length) == (3, 6)
    assert batch.pending_rows.size == 0


def test_a_chunk_over_the_end_of_the_prompt_after_preemption() -> None:
    resumed = sequence([1, 2, 3], [4, 5, 6], [0, 1], slot=3)
    batch = builder().build(Iteration(1, [chunk(resumed, 2, 3, samples=False)]))
    assert batch.tokens.tolist() == [3, 4, 5]
    assert batch.rows.size == 0


def test_a_token_that_only_the_device_knows() -> None:
    known = sequence([1, 2], [3], [0], slot=0)
    ahead = sequence([5, 6], [7], [1], slot=3)
    batch = builder().build(Iteration(1, [chunk(known, 2, 1), chunk(ahead, 3, 1, position=2)]))
    assert batch.tokens[0] == 3
    assert batch.positions.tolist() == [2, 3]
    assert batch.pending_rows.tolist() == [1]
    assert batch.pending_slots.tolist() == [3]


def test_block_tables_follow_their_sequence_as_it_grows_is_preempted_and_makes_way() -> None:
    build = builder().build
    first = sequence([1] * 9, [], [4, 5, 6], slot=0)
    assert build(Iteration(1, [chunk(first, 0, 9)])).block_table.tolist() == [[4, 5, 6]]

    first.output += [2] * 5
    first.block_table.append(1)
    assert build(Iteration(2, [chunk(first, 13, 1)])).block_table.tolist() == [[4, 5, 6, 1]]

    first.block_table = [3]
    assert build(Iteration(3, [chunk(first, 0, 4, samples=False)])).block_table.tolist() == [[3]]

    second = sequence([8] * 6, [], [2, 0], slot=0)
    assert build(Iteration(4, [chunk(second, 0, 6)])).block_table.tolist() == [[2, 0]]
