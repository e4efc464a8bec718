"""The random bits are Philox4x32-10's, and the same in each implementation."""

import math

import torch
import triton
import triton.language as tl

from headrace.kernels.sampling import noise
from headrace.kernels.sampling.triton_draw import gumbel, random_words


@triton.jit
def noise_kernel(seed, position, words, sums, quarters: tl.constexpr):
    at = tl.arange(0, 4 * quarters)
    bits = random_words(tl.load(seed), tl.load(position), 0, quarters)
    tl.store(words + at, bits.to(tl.int64))
    tl.store(sums + at, gumbel(bits))


def test_published_answers() -> None:
    """Known answers of Random123 for Philox4x32-10; the last word of the counter is always 0 here."""
    zero = torch.zeros(1, dtype=torch.int64)
    assert noise.philox(zero, zero, zero)[0].tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_triton_has_the_same_bits_and_noise() -> None:
    for seed, position in ((0, 0), (-1, 2**40 + 5), (-(2**63), 2**62), (1234567890123, 3)):
        seeds, positions = torch.tensor([seed]), torch.tensor([position])
        words, sums = torch.empty(256, dtype=torch.int64), torch.empty(256)
        noise_kernel[(1,)](seeds, positions, words, sums, 64)
        tokens = torch.arange(256)
        expected = noise.token_words(seeds, positions, torch.zeros_like(tokens), tokens, 256)
        assert torch.equal(words, expected)
        torch.testing.assert_close(sums, noise.gumbel(expected), rtol=2e-6, atol=1e-6)


def test_a_token_s_bits_do_not_depend_on_which_others_are_asked_for() -> None:
    seeds, positions = torch.tensor([5, 6]), torch.tensor([7, 8])
    tokens = torch.arange(1000)
    row = torch.ones_like(tokens)
    every = noise.token_words(seeds, positions, row, tokens, 1000)
    some = torch.rand(1000) < 0.1
    assert torch.equal(noise.token_words(seeds, positions, row[some], tokens[some], 1000), every[some])
    for vocabulary in (1000, 999, 5):
        whole = noise.row_words(seeds, positions, vocabulary)
        assert torch.equal(whole[1], every[:vocabulary])


def test_noise_is_bounded_as_pruning_assumes() -> None:
    extremes = noise.gumbel(torch.tensor([0, 2**32 - 1]))
    torch.testing.assert_close(extremes, torch.tensor([noise.LARGEST_NOISE, noise.SMALLEST_NOISE]))


def test_noise_is_gumbel() -> None:
    """Mean, variance and tails of 400,000 values."""
    tokens = torch.arange(400_000)
    zero = torch.zeros_like(tokens)
    words = noise.token_words(torch.tensor([99]), torch.tensor([0]), zero, tokens, 400_000)
    values = noise.gumbel(words).double()
    assert abs(values.mean().item() - 0.5772156649) < 0.012
    assert abs(values.var().item() - math.pi**2 / 6) < 0.03
    for limit in (-1.0, 0.0, 2.0, 5.0):
        share = (values < limit).double().mean().item()
        exact = math.exp(-math.exp(-limit))
        assert abs(share - exact) < 6 * math.sqrt(exact * (1 - exact) / tokens.numel())
