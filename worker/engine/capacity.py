"""Free capacity of the batch: how many more sequences the next iteration could admit.

What a worker takes beyond that would wait in it while another worker might serve it.
"""

from ..ageing import PRIORITY_CLASSES
from .scheduler import Scheduler

Credits = tuple[int, int, int]
"""Sequences of each class (see ``Ageing``): high, high or normal, any."""


def admission_credits(scheduler: Scheduler, typical_prompt: int, now: int) -> Credits:
    """How many more sequences of each class could be admitted next.

    ``typical_prompt`` is the number of tokens that their prompts are expected to have, ``now`` the time in
    milliseconds.
    """
    scheduler.now = max(scheduler.now, now)
    slots = scheduler.max_sequences - len(scheduler.running)
    if not slots:
        return 0, 0, 0
    free = _unclaimed_blocks(scheduler)
    high, normal, low = (
        _credits_of_class(scheduler, priority, now, typical_prompt, slots, free)
        for priority in range(PRIORITY_CLASSES)
    )
    return high, normal, low


def fits(scheduler: Scheduler, num_tokens: int, now: int) -> bool:
    """Whether the next iteration could admit a low sequence of ``num_tokens`` tokens at nobody's cost."""
    if scheduler.waiting or len(scheduler.running) >= scheduler.max_sequences:
        return False
    lowest = scheduler.ageing.virtual_arrival(PRIORITY_CLASSES - 1, now)
    headroom = scheduler.headroom(scheduler.running, lowest)
    return scheduler.cache.blocks_for(num_tokens) + headroom <= _unclaimed_blocks(scheduler)


def _credits_of_class(
    scheduler: Scheduler, priority: int, now: int, typical_prompt: int, slots: int, free: int
) -> int:
    cache = scheduler.cache
    virtual_arrival = scheduler.ageing.virtual_arrival(priority, now)
    if scheduler.waiting and scheduler.waiting[0].virtual_arrival <= virtual_arrival:
        return 0
    blocks = cache.blocks_for(typical_prompt)
    most = min(slots, -(-scheduler.max_batched_tokens // typical_prompt))
    least = 0 if scheduler.running else 1
    staying = scheduler.running.copy()
    displaceable = scheduler.displaceable(virtual_arrival)
    while True:
        spare = free - scheduler.headroom(staying, virtual_arrival)
        # Each newcomer but the last also has to leave a block to spare for itself.
        fitting = max(least, (spare + 1) // (blocks + 1))
        if fitting >= most or not displaceable:
            return min(most, fitting)
        displaced = displaceable.pop()
        staying.remove(displaced)
        free += cache.exclusive_blocks(displaced)


def _unclaimed_blocks(scheduler: Scheduler) -> int:
    """Free blocks, less those that running sequences need for what they know already."""
    cache = scheduler.cache
    missing = sum(
        cache.blocks_for(sequence.num_tokens) - len(sequence.block_table) for sequence in scheduler.running
    )
    return cache.num_free - missing
