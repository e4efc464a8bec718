"""A sequence's result is the same, bit for bit, alone and beside any others."""

import random
from dataclasses import replace

import torch
from attention_cases import Case, make_case

from headrace.kernels import AttentionBatch, paged_attention


def attend(case: Case, batch: AttentionBatch, query: torch.Tensor, window: int | None) -> torch.Tensor:
    return paged_attention(
        query,
        case.key_cache,
        case.value_cache,
        batch,
        scale=0.25,
        sliding_window=window,
        implementation="triton",
    )


def part(case: Case, members: list[int]) -> tuple[AttentionBatch, torch.Tensor]:
    """The batch of some of a case's sequences, in the given order, and its queries."""
    starts = case.batch.query_start.tolist()
    counts = [starts[m + 1] - starts[m] for m in members]
    lengths = case.batch.lengths[members]
    batch = AttentionBatch(
        query_start=torch.tensor([0, *counts]).cumsum(0).int(),
        lengths=lengths,
        block_table=case.batch.block_table[members],
        max_query=max(counts),
        max_length=int(lengths.max()),
    )
    return batch, torch.cat([case.query[starts[m] : starts[m + 1]] for m in members])


def test_alone_and_in_random_batches() -> None:
    window = random.choice([None, 70])
    sequences = [(1, 130), (1, 7), (18, 70), (1, 64), (5, 5)]
    case = make_case(sequences, head_dim=16, heads=2, kv_heads=1)
    alone: dict[int, torch.Tensor] = {}
    for index in range(len(sequences)):
        batch, query = part(case, [index])
        alone[index] = attend(case, batch, query, window)
    for _ in range(2):
        members = random.sample(range(len(sequences)), random.randint(2, len(sequences)))
        batch, query = part(case, members)
        result = attend(case, batch, query, window)
        begin = 0
        for member in members:
            own = alone[member]
            assert torch.equal(result[begin : begin + len(own)], own), (members, member)
            begin += len(own)


def test_generous_host_limits_change_nothing() -> None:
    """A captured graph is launched for the longest sequence there may be, not for the longest there is."""
    case = make_case([(1, 130), (1, 20)], head_dim=16, heads=2, kv_heads=1)
    exact = attend(case, case.batch, case.query, None)
    generous = replace(case.batch, max_query=1, max_length=1000)
    assert torch.equal(attend(case, generous, case.query, None), exact)


def test_a_sampled_row_does_not_depend_on_its_neighbours() -> None:
    from headrace.kernels import SamplingTensors, sample

    rows, vocabulary = 6, 500
    logits = torch.randn(rows, vocabulary) * 3
    params = SamplingTensors(
        temperature=torch.tensor([1.0, 0.0, 0.5, 2.0, 1.0, 1.0]),
        top_k=torch.tensor([0, 0, 7, 0, 3, 0], dtype=torch.int32),
        top_p=torch.tensor([1.0, 1.0, 0.9, 0.5, 1.0, 1.0]),
        min_p=torch.tensor([0.0, 0.0, 0.0, 0.1, 0.0, 0.0]),
        seed=torch.randint(2**40, (rows,)),
        position=torch.arange(rows),
    )
    for implementation in ("torch", "triton"):
        together = sample(logits, params, implementation=implementation).tokens
        order = torch.randperm(rows)[:4]
        some = SamplingTensors(
            *(
                getattr(params, name)[order]
                for name in ("temperature", "top_k", "top_p", "min_p", "seed", "position")
            )
        )
        assert torch.equal(sample(logits[order], some, implementation=implementation).tokens, together[order])
