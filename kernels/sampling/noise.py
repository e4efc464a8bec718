"""Counter-based Gumbel noise: the same bits for a (seed, position, token) on any device and in any batch.

Philox4x32-10 gives four 32-bit words for a 64-bit key and a 128-bit counter. The key is the seed, the counter
the position in the output (64 bits) and a quarter of the token index (32 bits); the token takes word ``index
% 4``.
"""

import math
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Words = NDArray[np.uint64]

ROUNDS: Final = 10
MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
WEYL: Final = (0x9E3779B9, 0xBB67AE85)
WORD: Final = 0xFFFFFFFF
AT_ONCE: Final = 8192
"""Counters computed together: few enough that the rounds stay in the CPU's cache."""

LARGEST_UNIFORM: Final = 1.0 - 2.0**-24
LARGEST_NOISE: Final = 33 * math.log(2.0)
"""Noise of the smallest uniform, 2**-33."""
SMALLEST_NOISE: Final = -math.log(24 * math.log(2.0))
"""Noise of the largest uniform, 1 - 2**-24."""


def philox(seed: Tensor, position: Tensor, quarter: Tensor) -> Tensor:
    """Four 32-bit words, in int64 [n, 4], for each of n keys, positions and quarters of token indices
    (int64).

    Computed by numpy on the host, which has unsigned shifts and works in place: five times as fast as torch.
    """
    seeds, positions, quarters = (x.cpu().numpy().view(np.uint64) for x in (seed, position, quarter))
    words = np.empty((seed.numel(), 4), np.uint64)
    for begin in range(0, len(words), AT_ONCE):
        part = slice(begin, begin + AT_ONCE)
        _philox(seeds[part], positions[part], quarters[part], words[part])
    return torch.from_numpy(words.view(np.int64)).to(seed.device)


def _philox(seed: Words, position: Words, quarter: Words, words: Words) -> None:
    half, mask = np.uint64(32), np.uint64(WORD)
    first, second = np.uint64(MULTIPLIERS[0]), np.uint64(MULTIPLIERS[1])
    key_a, key_b = seed & mask, seed >> half
    a, b, c, d = position & mask, position >> half, quarter.copy(), np.zeros_like(quarter)
    even, odd = np.empty_like(a), np.empty_like(a)
    for _ in range(ROUNDS):
        np.multiply(a, first, out=even)
        np.multiply(c, second, out=odd)
        np.right_shift(odd, half, out=a)
        np.bitwise_xor(a, b, out=a)
        np.bitwise_xor(a, key_a, out=a)
        np.bitwise_and(odd, mask, out=b)
        np.right_shift(even, half, out=c)
        np.bitwise_xor(c, d, out=c)
        np.bitwise_xor(c, key_b, out=c)
        np.bitwise_and(even, mask, out=d)
        key_a = (key_a + np.uint64(WEYL[0])) & mask
        key_b = (key_b + np.uint64(WEYL[1])) & mask
    for column, values in enumerate((a, b, c, d)):
        words[:, column] = values


def row_words(seed: Tensor, position: Tensor, vocabulary: int) -> Tensor:
    """The 32 random bits, in int64 [R, vocabulary], of every token of R rows."""
    quarters = (vocabulary + 3) // 4
    rows = seed.numel()
    quarter = torch.arange(quarters, device=seed.device).repeat(rows)
    words = philox(seed.repeat_interleave(quarters), position.repeat_interleave(quarters), quarter)
    return words.view(rows, -1)[:, :vocabulary]


def token_words(seed: Tensor, position: Tensor, row: Tensor, token: Tensor, vocabulary: int) -> Tensor:
    """The 32 random bits, in int64 [n], of n tokens of a batch.

    Args:
        seed: int64 [R].
        position: int64 [R].
        row: int64 [n], ascending: row of each token.
        token: int64 [n], ascending within a row.
        vocabulary: more than any token.
    """
    quarters = (vocabulary + 3) // 4
    # Neighbours share a counter; it is run once for them.
    group, which = (row * quarters + (token >> 2)).unique_consecutive(return_inverse=True)
    owner = group // quarters
    words = philox(seed[owner], position[owner], group % quarters)
    return words.view(-1)[which * 4 + (token & 3)]


def gumbel(words: Tensor) -> Tensor:
    """Standard Gumbel noise, float32, of 32 random bits each: ``-log(-log(1 - u))``.

    Large noise, which decides the draw, comes from ``u`` near zero, where floating point is dense: it is as
    fine as 32 bits allow.
    """
    uniform = (words.float() + 0.5) * 2.0**-32
    return -torch.log(-torch.log1p(-uniform.clamp_(max=LARGEST_UNIFORM)))
