"""Continuous batching: which sequences get how many tokens in the next iteration.

Iteration-level scheduling as in Orca (Yu et al., 2022), chunked prefill beside decodes as in Sarathi-Serve
(Agrawal et al., 2024), blocks on demand with preemption by recomputation as in vLLM (Kwon et al., 2023).
"""

from bisect import bisect_right, insort
from operator import attrgetter

from ..ageing import Ageing
from .iteration import Chunk, Iteration
from .kv_cache import KVCache
from .sequence import Sequence, SequenceStatus


class Scheduler:
    """Decides iterations under a token budget, a limit of sequences, and the free blocks of the cache.

    The budget is a limit, not a target. Every sequence given to ``add`` must fit into the empty cache as a
    whole; the most urgent one is never preempted, so each call makes progress. Urgency is the virtual
    arrival, a constant, so whoever waits long enough becomes the most urgent one and stays it.

    A sequence loses its blocks for want of blocks only: to one more urgent that runs and needs another, or to
    one that waits and counts as of a higher priority; to such at most once an ageing time.
    """

    def __init__(
        self, cache: KVCache, *, max_batched_tokens: int, max_sequences: int, ageing: Ageing | None = None
    ) -> None:
        if max_batched_tokens < 1:
            raise ValueError(f"max_batched_tokens: must be at least 1, got {max_batched_tokens}")
        if max_sequences < 1:
            raise ValueError(f"max_sequences: must be at least 1, got {max_sequences}")
        self.cache = cache
        self.max_batched_tokens = max_batched_tokens
        self.max_sequences = max_sequences
        self.ageing = ageing or Ageing()
        # Both in order of urgency.
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._free_slots = list(reversed(range(max_sequences)))
        self._number = 0
        self.now = 0
        """The latest moment, in milliseconds, that the scheduler has been told of."""

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for admission."""
        sequence.virtual_arrival = self.ageing.virtual_arrival(sequence.priority, sequence.arrival)
        self.now = max(self.now, sequence.arrival)
        insort(self.waiting, sequence, key=_urgency)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is; its blocks are free afterwards."""
        if sequence.status is SequenceStatus.RUNNING:
            self._stop_running(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.status = SequenceStatus.FINISHED
        self.cache.forget(sequence)

    def schedule(self, max_tokens: int | None = None) -> Iteration:
        """The next iteration, of at most ``max_tokens``. Its chunks count as computed from here on."""
        self._number += 1
        iteration = Iteration(self._number)
        limit = self.max_batched_tokens if max_tokens is None else max_tokens
        budget = self._continue_running(iteration, limit)
        if self.waiting and budget and not iteration.preempted:
            self._admit_waiting(iteration, budget, limit)
        iteration.count_scheduled()
        return iteration

    def withdraw(self, iteration: Iteration) -> None:
        """Count the chunks of ``iteration``, the last one scheduled, as not computed after all.

        Its sequences keep running, with their blocks and all that was computed before.
        """
        iteration.count_withdrawn()

    def _continue_running(self, iteration: Iteration, limit: int) -> int:
        budget = limit
        prefills: list[Sequence] = []
        block_size = self.cache.block_size
        running = SequenceStatus.RUNNING
        # Decodes first, so that nobody's stream waits for someone's prompt. Written out for them: with
        # hundreds of sequences, this loop is what an iteration costs the host.
        for sequence in self.running.copy():
            num_tokens = sequence.num_tokens
            start = sequence.num_computed
            if (
                num_tokens >= sequence.max_length or sequence.status is not running
            ):  # all computed; just preempted
                continue
            if num_tokens - start != 1:
                prefills.append(sequence)
            elif not budget:
                break
            else:
                num_blocks = len(sequence.block_table)
                if num_tokens > num_blocks * block_size:
                    if not self._find_blocks(sequence, num_tokens, iteration):
                        continue
                    num_blocks = len(sequence.block_table)
                    if iteration.preempted:
                        budget = limit - iteration.num_tokens
                position = num_tokens - len(sequence.prompt)
                iteration.chunks.append(Chunk(sequence, start, 1, True, position, num_blocks))
                budget -= 1
        for sequence in prefills:
            if not budget:
                break
            if sequence.status is not SequenceStatus.RUNNING:  # preempted a moment ago
                continue
            length = min(budget, sequence.num_uncomputed)
            if not self._find_blocks(sequence, sequence.num_computed + length, iteration):
                continue
            if iteration.preempted:
                # What a preempted sequence had been given is spent by nobody.
                budget = limit - iteration.num_tokens
                length = min(sequence.num_uncomputed, budget)
            iteration.chunks.append(_chunk(sequence, length))
            budget -= length
        return budget

    def _find_blocks(self, sequence: Sequence, num_tokens: int, iteration: Iteration) -> bool:
        while not self.cache.grow(sequence, num_tokens):
            victim = self.running[-1]
            self._preempt(victim, iteration)
            if victim is sequence:
                return False
        return True

    def _admit_waiting(self, iteration: Iteration, budget: int, limit: int) -> None:
        # Whoever runs has been given all it needs in this iteration, or there would be no budget left.
        while self.waiting and budget and len(self.running) < self.max_sequences:
            sequence = self.waiting[0]
            if sequence in iteration.preempted:
                break
            if sequence.is_complete:  # preempted with its last token still pending
                break
            blocks = self.cache.cached_prefix(sequence)
            needed = (
                self.cache.blocks_for(sequence.num_tokens) - len(blocks) + self.cache.num_reclaimed(blocks)
            )
            headroom = self.headroom(self.running, sequence.virtual_arrival, sequence.num_preempted)
            if needed + headroom > self.cache.num_free:
                if not self._make_room(sequence, needed, iteration):
                    break
                budget = limit - iteration.num_tokens
                continue
            del self.waiting[0]
            self._start_running(sequence, blocks)
            length = min(sequence.num_uncomputed, budget)
            self.cache.grow(sequence, sequence.num_computed + length)
            iteration.chunks.append(_chunk(sequence, length))
            budget -= length

    def headroom(self, running: list[Sequence], virtual_arrival: int, num_preempted: int = 0) -> int:
        """Blocks that must stay free when such a sequence joins those ``running``.

        One for each of them, or the newcomer would be preempted before it had said a word. If it has been,
        it shall get twice as far as the last time before those ahead of it want its blocks again: so it is
        computed again a few times, however long that lasts.
        """
        if not num_preempted:
            return len(running)
        ahead = bisect_right(running, virtual_arrival, key=_urgency)
        return max(len(running), ahead << num_preempted)

    def displaceable(self, virtual_arrival: int) -> list[Sequence]:
        """Those running that lose their blocks to such a one if it lacks some; the most urgent first."""
        reached = self.ageing.class_at(virtual_arrival, self.now)
        return [
            other
            for other in self.running
            if other.priority > reached
            and other.virtual_arrival > virtual_arrival
            and other.spared_until <= self.now
        ]

    def _make_room(self, sequence: Sequence, needed: int, iteration: Iteration) -> bool:
        """Displace the least urgent of those running, no more than must be; nobody if that is not enough."""
        lesser = self.displaceable(sequence.virtual_arrival)
        staying = self.running.copy()
        free = self.cache.num_free
        victims: list[Sequence] = []
        while lesser:
            victim = lesser.pop()
            victims.append(victim)
            staying.remove(victim)
            free += self.cache.exclusive_blocks(victim)
            headroom = self.headroom(staying, sequence.virtual_arrival, sequence.num_preempted)
            if needed + headroom <= free:
                for victim in victims:
                    victim.spared_until = self.now + self.ageing.ms
                    self._preempt(victim, iteration)
                return True
        return False

    def _start_running(self, sequence: Sequence, blocks: list[int]) -> None:
        self.cache.share(sequence, blocks)
        if self.cache.prefix_caching:
            stats = self.cache.prefix_stats
            stats.queried += sequence.num_tokens
            stats.hit += sequence.num_computed
        if not sequence.output:
            sequence.num_cached = sequence.num_computed
        sequence.slot = self._free_slots.pop()
        sequence.status = SequenceStatus.RUNNING
        insort(self.running, sequence, key=_urgency)

    def _stop_running(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._free_slots.append(sequence.slot)
        sequence.slot = -1
        self.cache.release(sequence)

    def _preempt(self, sequence: Sequence, iteration: Iteration) -> None:
        self._stop_running(sequence)
        sequence.num_preempted += 1
        sequence.status = SequenceStatus.PREEMPTED
        self.add(sequence)
        iteration.preempted.append(sequence)
        iteration.chunks[:] = [chunk for chunk in iteration.chunks if chunk.sequence is not sequence]


_urgency = attrgetter("virtual_arrival")


def _chunk(sequence: Sequence, length: int) -> Chunk:
    return Chunk(
        sequence,
        sequence.num_computed,
        length,
        sequence.num_computed + length == sequence.num_tokens,
        sequence.num_tokens - len(sequence.prompt),
        len(sequence.block_table),
    )
