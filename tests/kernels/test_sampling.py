"""Tokens follow the exact distribution that the parameters describe, and both implementations draw the
same."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from headrace.kernels import Implementation, Penalties, SamplingTensors, sample
from headrace.kernels.launch import run
from headrace.kernels.sampling import cpu_sampling
from headrace.kernels.sampling.triton_sampling import plan

BOTH = pytest.mark.parametrize("implementation", ["torch", "triton"])
# At this many standard deviations of a chi-square statistic, one run in some ten thousand fails by chance.
DEVIATIONS = 5.0


def parameters(
    rows: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int | None = None,
    penalties: Penalties | None = None,
) -> SamplingTensors:
    """The same for each row, with positions 0, 1, 2, ..."""
    return SamplingTensors(
        temperature=torch.full((rows,), temperature),
        top_k=torch.full((rows,), top_k, dtype=torch.int32),
        top_p=torch.full((rows,), top_p),
        min_p=torch.full((rows,), min_p),
        seed=torch.full((rows,), random.getrandbits(62) if seed is None else seed),
        position=torch.arange(rows),
        penalties=penalties,
        filters=bool(top_k or min_p or top_p < 1),
    )


def exact(logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> Tensor:
    """The distribution over the vocabulary, float64, by sorting."""
    p = (logits.double() / temperature).softmax(0)
    p = torch.where(p >= min_p * p.max() * (1 - 1e-9), p, 0)
    if top_k:
        p = torch.where(p >= p.topk(min(top_k, p.numel())).values[-1], p, 0)
    p = p / p.sum()
    if top_p < 1:
        descending = p.sort(descending=True).values
        least = descending[int((descending.cumsum(0) < top_p).sum())]
        p = torch.where(p >= least, p, 0)
    return p / p.sum()


def assert_drawn_from(tokens: Tensor, p: Tensor) -> None:
    """Chi-square goodness of fit, with rare tokens put together."""
    observed = torch.bincount(tokens, minlength=p.numel()).double()
    assert not observed[p == 0].any(), "a token was drawn that the filters exclude"
    expected = p * tokens.numel()
    common = expected >= 10
    cells = torch.cat([expected[common], expected[~common].sum()[None]])
    counts = torch.cat([observed[common], observed[~common].sum()[None]])
    counts, cells = counts[cells > 0.5], cells[cells > 0.5]
    freedom = max(1, cells.numel() - 1)
    statistic = float(((counts - cells) ** 2 / cells).sum())
    assert statistic < freedom + DEVIATIONS * (2 * freedom) ** 0.5 + 10, (statistic, freedom)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.4},
        {"temperature": 3.0},
        {"top_k": 1},
        {"top_k": 7},
        {"top_p": 0.3},
        {"top_p": 0.95},
        {"min_p": 0.1},
        {"top_k": 12, "top_p": 0.8},
        {"min_p": 0.02, "top_p": 0.9, "temperature": 1.5},
        {"min_p": 0.05, "top_k": 5, "top_p": 0.7},
    ],
    ids=str,
)
def test_distribution(options: dict[str, Any]) -> None:
    logits = torch.randn(60) * 2
    tokens = sample(logits.expand(20_000, -1), parameters(20_000, **options)).tokens
    filled = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | options
    assert_drawn_from(tokens, exact(logits, **filled))


def test_distribution_over_a_large_vocabulary() -> None:
    """262,144 tokens, most of them improbable alone and not together: buckets of them against float64."""
    logits = torch.randn(262_144) * 2
    logits[::5000] += 6
    tokens = sample(logits.expand(100, -1), parameters(100)).tokens
    p = logits.double().softmax(0)
    order = p.argsort(descending=True)
    bucket = torch.empty_like(order)
    # Ten buckets of equal mass.
    bucket[order] = (p[order].cumsum(0) * 10).clamp(max=9).long()
    mass = torch.zeros(10, dtype=torch.float64).index_add_(0, bucket, p)
    assert_drawn_from(bucket[tokens], mass)


def test_a_uniform_large_vocabulary_favours_no_index() -> None:
    tokens = sample(torch.zeros(1, 65_536).expand(200, -1), parameters(200)).tokens
    assert_drawn_from(tokens * 8 // 65_536, torch.full((8,), 1 / 8, dtype=torch.float64))


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 1500},
        {"top_p": 0.95},
        {"top_k": 2500, "top_p": 0.9},
        {"min_p": 0.3, "top_p": 0.97},
        {"min_p": 0.01, "top_k": 1200, "temperature": 2.0},
    ],
    ids=str,
)
@BOTH
def test_filters_keep_what_sorting_keeps_however_flat_the_row(
    implementation: Implementation, options: dict[str, Any]
) -> None:
    """Rows whose cutoff is among the likeliest tokens, and rows where more than those are above it."""
    filled = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | options
    size = 4000
    rows = [torch.randn(size) * spread for spread in (1e-3, 0.3, 1.0, 5.0)]
    logits = torch.stack([*rows, (torch.randn(size) * 2).round(), torch.zeros(size)])
    params = parameters(len(logits), **options)
    scaled = (logits - logits.amax(-1, keepdim=True)) / filled["temperature"]
    if implementation == "torch":
        kept = scaled >= cpu_sampling._cutoffs(scaled, params)[:, None]
    else:
        launches, _ = plan(logits, params, None, chunk=1024)
        run(launches)
        (cutoffs,) = (launch.arguments["cutoffs"] for launch in launches if "min_p" in launch.arguments)
        bits = scaled.view(torch.int32)
        kept = (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >= cutoffs[:, None]
    for row, mine in zip(scaled, kept, strict=True):
        differing = mine != (exact(row, **filled | {"temperature": 1.0}) > 0)
        # A sum's rounding may decide about one value: that of one token, or of all its equals.
        assert row[differing].unique().numel() <= 1
        assert int(differing.sum()) <= 1 or row.unique().numel() < 100


@pytest.mark.parametrize("kind", ["none", "temperature", "filters", "penalties"])
def test_implementations_draw_the_same(kind: str) -> None:
    rows = 4
    for vocabulary, chunk in ((7, 64), (300, 64)):
        logits = torch.randn(rows, vocabulary) * 3
        if random.random() < 0.5:
            logits = logits.round().half()  # Equal logits.

        def pick(*values: float) -> Tensor:
            return torch.tensor([random.choice(values) for _ in range(rows)])

        penalties = Penalties(
            repetition=pick(1.0, 1.3, 0.7),
            presence=pick(0.0, 0.5),
            frequency=pick(0.0, 0.3),
            prompt=torch.randint(-1, vocabulary, (rows, random.choice([0, 9]))),
            output=torch.randint(-1, vocabulary, (rows, 6)),
        )
        filters = kind != "temperature"
        params = SamplingTensors(
            temperature=pick(0.0, 1.0, 0.5, 3.0, 1e-4),
            top_k=pick(0, 1, 5, 10**6).int() if filters else torch.zeros(rows, dtype=torch.int32),
            top_p=pick(1.0, 0.9, 0.3) if filters else torch.ones(rows),
            min_p=pick(0.0, 0.05, 0.5) if filters else torch.zeros(rows),
            seed=torch.randint(-(2**62), 2**62, (rows,)),
            position=torch.randint(2**40, (rows,)),
            penalties=penalties if kind == "penalties" else None,
            filters=filters,
        )
        given = None if kind == "none" else params
        reference = sample(logits, given, num_logprobs=3, implementation="torch")
        launches, result = plan(logits, given, 3, chunk=chunk)
        run(launches)
        assert torch.equal(result.tokens, reference.tokens)
        assert result.logprobs is not None
        assert reference.logprobs is not None
        torch.testing.assert_close(result.logprobs, reference.logprobs)
        assert result.top_tokens is not None
        assert reference.top_tokens is not None
        assert torch.equal(result.top_tokens, reference.top_tokens)
        torch.testing.assert_close(result.top_logprobs, reference.top_logprobs)


@BOTH
@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 0.9}, {"min_p": 1.0}], ids=str)
def test_filters_take_both_zeros_for_equal(implementation: Implementation, options: dict[str, Any]) -> None:
    """Rounding leaves zeros of either sign: as the best of a row, neither is likelier than the other."""
    logits = torch.tensor([0.0, -0.0, -9.0, 0.0, -0.0, -8.0])
    params = parameters(20, **options)
    tokens = sample(logits.expand(20, -1).contiguous(), params, implementation=implementation).tokens
    # That twenty draws all take a zero of the same sign happens once in half a million runs.
    assert not logits[tokens].any()
    signs = logits[tokens].signbit()
    assert signs.any()
    assert not signs.all()


@BOTH
def test_greedy_takes_the_first_of_the_largest(implementation: Implementation) -> None:
    logits = torch.randint(0, 5, (4, 5000)).half()
    expected = (logits == logits.amax(-1, keepdim=True)).int().argmax(-1)
    assert torch.equal(sample(logits, None, implementation=implementation).tokens, expected)
    still = parameters(4, temperature=0.0, top_k=3, top_p=0.5)
    assert torch.equal(sample(logits, still, implementation=implementation).tokens, expected)


@BOTH
def test_logprobs_are_the_model_s(implementation: Implementation) -> None:
    """Before temperature, penalties and filters; equal ones in the order of their indices."""
    logits = (torch.randn(2, 3000) * 2).half()
    logits[0, [5, 2000]] = 20.0
    token = torch.tensor([[5], [6]])
    penalties = Penalties(
        repetition=torch.full((2,), 5.0),
        presence=torch.zeros(2),
        frequency=torch.zeros(2),
        prompt=token,
        output=token,
    )
    result = sample(
        logits,
        parameters(2, temperature=0.3, top_k=2, penalties=penalties),
        num_logprobs=4,
        implementation=implementation,
    )
    exact_logprobs = logits.double().log_softmax(-1)
    assert result.logprobs is not None
    assert result.top_tokens is not None
    assert result.top_logprobs is not None
    torch.testing.assert_close(
        result.logprobs.double(), exact_logprobs.gather(1, result.tokens[:, None])[:, 0], rtol=1e-5, atol=1e-5
    )
    descending = exact_logprobs.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(result.top_tokens, descending.indices[:, :4])
    torch.testing.assert_close(result.top_logprobs.double(), descending.values[:, :4], rtol=1e-5, atol=1e-5)


@BOTH
def test_penalties(implementation: Implementation) -> None:
    """Each greedy row is decided by one kind of penalty."""
    # Without penalties, token 0 wins everywhere.
    logits = torch.tensor([2.0, 1.5, 1.4, -1.0]).repeat(5, 1)
    none = [-1, -1, -1]
    penalties = Penalties(
        repetition=torch.tensor([1.0, 1.5, 1.0, 1.0, 1.5]),
        presence=torch.tensor([0.0, 0.0, 0.6, 0.0, 0.0]),
        frequency=torch.tensor([0.0, 0.0, 0.0, 0.3, 0.0]),
        # Repetition looks at the prompt, presence and frequency do not.
        prompt=torch.tensor([[0, 0, -1], [0, 0, -1], [1, -1, 1], [1, -1, 1], none]),
        output=torch.tensor([none, none, [0, -1, -1], [0, 0, -1], [0, 1, 2]]),
    )
    greedy = parameters(5, temperature=0.0, penalties=penalties)
    tokens = sample(logits, greedy, implementation=implementation).tokens
    assert tokens.tolist() == [0, 1, 1, 1, 0]
    assert torch.equal(logits[0], torch.tensor([2.0, 1.5, 1.4, -1.0]))


@BOTH
@pytest.mark.filterwarnings("ignore:invalid value encountered")  # the broken row's
def test_a_broken_row_stays_in_range_and_breaks_no_other(implementation: Implementation) -> None:
    logits = torch.randn(4, 300)
    sane = sample(logits, parameters(4, top_p=0.9, seed=3), implementation=implementation).tokens
    logits[1] = float("nan")
    logits[2, 7] = float("inf")
    tokens = sample(logits, parameters(4, top_p=0.9, seed=3), implementation=implementation).tokens
    assert ((tokens >= 0) & (tokens < 300)).all()
    assert tokens[2] == 7
    assert torch.equal(tokens[[0, 3]], sane[[0, 3]])


def test_seed_and_position_decide() -> None:
    logits = torch.zeros(3, 100_000)
    first = sample(logits, parameters(3, seed=1)).tokens
    assert torch.equal(sample(logits, parameters(3, seed=1)).tokens, first)
    assert len({*first.tolist(), *sample(logits, parameters(3, seed=2)).tokens.tolist()}) == 6


def test_bad_arguments_are_named() -> None:
    logits = torch.randn(3, 10)
    with pytest.raises(ValueError, match=r"^logits:"):
        sample(logits[0], None)
    with pytest.raises(ValueError, match=r"^num_logprobs: expected 0 to 10, got 11"):
        sample(logits, None, num_logprobs=11)
    with pytest.raises(ValueError, match=r"^params\.temperature: .*\[3\]"):
        sample(logits, parameters(2))
