"""Counter-based Gumbel noise: the same bits wherever, whenever and beside whatever a token is sampled.

Philox4x32-10 gives four 32-bit words for a 64-bit key and a 128-bit counter. The key is the seed, the counter
the position in the output (64 bits) and a quarter of the token index (32 bits); the token takes word ``index
% 4``.
"""

import math
from typing import Final

import torch
from torch import Tensor

ROUNDS: Final = 10
MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
WEYL: Final = (0x9E3779B9, 0xBB67AE85)
WORD: Final = 0xFFFFFFFF
AT_ONCE: Final = 4096
"""Counters run together: few enough that the rounds stay in the cache."""

LARGEST_UNIFORM: Final = 1.0 - 2.0**-24
LARGEST_NOISE: Final = 33 * math.log(2.0)
"""Noise of the smallest uniform, 2**-33."""
SMALLEST_NOISE: Final = -math.log(24 * math.log(2.0))
"""Noise of the largest uniform, 1 - 2**-24."""


def philox(seed: Tensor, position: Tensor, quarter: Tensor) -> Tensor:
    """Four 32-bit words, in int64 [n, 4], for each of n keys, positions and quarters of token indices
    (int64)."""
    result = torch.empty(seed.numel(), 4, dtype=torch.int64, device=seed.device)
    for part, *inputs in zip(*(x.split(AT_ONCE) for x in (result, seed, position, quarter)), strict=True):
        part.copy_(_philox(*inputs))
    return result


def _philox(seed: Tensor, position: Tensor, quarter: Tensor) -> Tensor:
    key = [seed & WORD, (seed >> 32) & WORD]
    counter = [position & WORD, (position >> 32) & WORD, quarter, torch.zeros_like(quarter)]
    for _ in range(ROUNDS):
        # A product's low 64 bits do not depend on its sign, and the masks undo the arithmetic shift.
        even, odd = counter[0] * MULTIPLIERS[0], counter[2] * MULTIPLIERS[1]
        counter = [
            (odd >> 32).bitwise_and_(WORD).bitwise_xor_(counter[1]).bitwise_xor_(key[0]),
            odd.bitwise_and_(WORD),
            (even >> 32).bitwise_and_(WORD).bitwise_xor_(counter[3]).bitwise_xor_(key[1]),
            even.bitwise_and_(WORD),
        ]
        key = [(key[0] + WEYL[0]) & WORD, (key[1] + WEYL[1]) & WORD]
    return torch.stack(counter, dim=-1)


def token_words(seed: Tensor, position: Tensor, row: Tensor, token: Tensor, vocabulary: int) -> Tensor:
    """The 32 random bits, in int64 [n], of n tokens of a batch.

    Args:
        seed: int64 [R].
        position: int64 [R].
        row: int64 [n], ascending: which of the R rows each token is of.
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

    With ``u`` on the side where floating point is dense near zero, large noise, which decides who wins, is as
    fine as 32 bits allow.
    """
    uniform = (words.float() + 0.5) * 2.0**-32
    return -torch.log(-torch.log1p(-uniform.clamp_(max=LARGEST_UNIFORM)))
