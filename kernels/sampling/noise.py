"""Counter-based Gumbel noise: the same bits wherever, whenever and beside whatever a token is sampled.

Philox4x32-10 gives four 32-bit words for a 64-bit key and a 128-bit counter. The key is the seed, the counter the
position in the output (64 bits) and a quarter of the token index (32 bits); the token takes word ``index % 4``.
"""

import math
from typing import Final

import torch
from torch import Tensor

ROUNDS: Final = 10
MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
WEYL: Final = (0x9E3779B9, 0xBB67AE85)
WORD: Final = 0xFFFFFFFF

LARGEST_UNIFORM: Final = 1.0 - 2.0**-24
LARGEST_NOISE: Final = 33 * math.log(2.0)
"""Noise of the smallest uniform, 2**-33."""
SMALLEST_NOISE: Final = -math.log(24 * math.log(2.0))
"""Noise of the largest uniform, 1 - 2**-24."""


def philox_words(seed: Tensor, position: Tensor, token: Tensor) -> Tensor:
    """The 32 random bits (in an int64) of each token index; all three int64 of the same shape."""
    key = [seed & WORD, (seed >> 32) & WORD]
    counter = [position & WORD, (position >> 32) & WORD, token >> 2, torch.zeros_like(token)]
    for _ in range(ROUNDS):
        # A product's low 64 bits do not depend on its sign, and the masks undo the arithmetic shift.
        even, odd = counter[0] * MULTIPLIERS[0], counter[2] * MULTIPLIERS[1]
        counter = [
            ((odd >> 32) & WORD) ^ counter[1] ^ key[0],
            odd & WORD,
            ((even >> 32) & WORD) ^ counter[3] ^ key[1],
            even & WORD,
        ]
        key = [(key[0] + WEYL[0]) & WORD, (key[1] + WEYL[1]) & WORD]
    return torch.stack(counter).gather(0, (token & 3)[None])[0]


def gumbel(words: Tensor) -> Tensor:
    """Standard Gumbel noise, float32, of 32 random bits each: ``-log(-log(1 - u))``.

    With ``u`` on the side where floating point is dense near zero, large noise, which decides who wins, is as fine
    as 32 bits allow.
    """
    uniform = (words.float() + 0.5) * 2.0**-32
    return -torch.log(-torch.log1p(-uniform.clamp_(max=LARGEST_UNIFORM)))
