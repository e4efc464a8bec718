"""Lengths of pauses that differ, so that many who began one at the same time do not end it so."""

import random
from typing import Final

_GENERATOR: Final = random.SystemRandom()
"""Not the module's own, which the program around may have seeded, here and in every process like this one."""


def jittered(pause: float, least: float = 0.5) -> float:
    """A random part of ``pause``, from the fraction ``least`` of it up to all."""
    return pause * _GENERATOR.uniform(least, 1.0)
