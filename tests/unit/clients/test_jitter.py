"""Pauses differ, also where the program around has seeded its random numbers."""

import random

from headrace.clients.jitter import jittered


def test_programs_that_seed_alike_do_not_pause_alike() -> None:
    pauses: set[float] = set()
    for _ in range(20):
        random.seed(0)
        pauses.add(jittered(10.0, 0.8))
    assert len(pauses) > 1
    assert all(8.0 <= pause <= 10.0 for pause in pauses)


def test_a_program_s_own_random_numbers_stay_what_they_would_be() -> None:
    random.seed(0)
    expected = random.random()
    random.seed(0)
    jittered(1.0)
    assert random.random() == expected
