"""Continuous batching: which sequences get how many tokens in the next iteration.

Iteration-level scheduling as in Orca (Yu et al., 2022), chunked prefill beside decodes as in Sarathi-Serve
(Agrawal et al., 2024), blocks on demand with preemption by recomputation as in vLLM (Kwon et al., 2023).
"""

from bisect import insort

from .iteration import Chunk, Iteration
from .kv_cache import KVCache
from .sequence import Sequence


class Scheduler:
    """Decides iterations under a token budget, a limit of sequences, and the free blocks of the cache.

    The budget is a limit, not a target. Every sequence given to ``add`` must fit into the empty cache as a
    whole; the most urgent one is never preempted, so each call makes progress.
    """

    def __init__(self, cache: KVCache, *, max_batched_tokens: int, max_sequences: int) -> None:
        if max_batched_tokens < 1:
            raise ValueError(f"max_batched_tokens: must be at least 1, got {max_batched_tokens}")
        if max_sequences < 1:
            raise ValueError(f"max_sequences: must be at least 1, got {max_sequences}")
        self.cache = cache
        self.max_batched_tokens = max_batched_tokens
        self.max_sequences = max_sequences
        # Both in order of urgency: by priority, then by arrival.
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._free_slots = list(reversed(range(max_sequences)))
        self._number = 0

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for admission."""
        insort(self.waiting, sequence, key=_urgency)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is; its blocks are free afterwards."""
        if sequence.slot >= 0:
            self._stop_running(sequence)
        else:
            self.waiting.remove(sequence)

    def schedule(self, max_tokens: int | None = None) -> Iteration:
        """The next iteration, of at most ``max_tokens``. Its chunks count as computed from here on."""
        self._number += 1
        iteration = Iteration(self._number)
        limit = self.max_batched_tokens if max_tokens is None else max_tokens
        budget = self._continue_running(iteration, limit)
        if self.waiting and budget and not iteration.preempted:
            self._admit_waiting(iteration, budget, limit)
        for chunk in iteration.chunks:
            sequence = chunk.sequence
            sequence.num_computed += chunk.length
            if chunk.samples:
                sequence.num_pending += 1
                sequence.num_tokens += 1
        return iteration

    def withdraw(self, iteration: Iteration) -> None:
        """Count the chunks of ``iteration``, the last one scheduled, as not computed after all.

        Its sequences keep running, with their blocks and all that was computed before.
        """
        for chunk in iteration.chunks:
            sequence = chunk.sequence
            sequence.num_computed -= chunk.length
            if chunk.samples:
                sequence.num_pending -= 1
                sequence.num_tokens -= 1

    def _continue_running(self, iteration: Iteration, limit: int) -> int:
        budget = limit
        prefills: list[Sequence] = []
        block_size = self.cache.block_size
        # Decodes first, so that nobody's stream waits for someone's prompt. Written out for them: with
        # hundreds of sequences, this loop is what an iteration costs the host.
        for sequence in self.running.copy():
            num_tokens = sequence.num_tokens
            start = sequence.num_computed
            if num_tokens >= sequence.max_length or sequence.slot < 0:  # all computed; just preempted
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
            if sequence.slot < 0:  # preempted a moment ago
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
        while self.waiting and budget:
            sequence = self.waiting[0]
            if sequence in iteration.preempted:
                break
            if sequence.is_complete:  # preempted with its last token still pending
                break
            blocks = self.cache.cached_prefix(sequence)
            needed = (
                self.cache.blocks_for(sequence.num_tokens)
                - len(blocks)
                + self.cache.num_reclaimed(blocks)
                + self._headroom()
            )
            if len(self.running) >= self.max_sequences or needed > self.cache.num_free:
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

    def _headroom(self) -> int:
        # Without a block to spare for each running sequence, the newcomer would be preempted before it had
        # said a word.
        return len(self.running)

    def _make_room(self, sequence: Sequence, needed: int, iteration: Iteration) -> bool:
        """Preempt the least urgent running sequence, if it and others less important would be enough."""
        lesser = [other for other in self.running if other.priority > sequence.priority]
        if not lesser:
            return False
        gained = sum(self.cache.exclusive_blocks(other) + 1 for other in lesser)
        if needed > self.cache.num_free + gained:
            return False
        self._preempt(lesser[-1], iteration)
        return True

    def _start_running(self, sequence: Sequence, blocks: list[int]) -> None:
        self.cache.share(sequence, blocks)
        if self.cache.prefix_caching:
            stats = self.cache.prefix_stats
            stats.queried += sequence.num_tokens
            stats.hit += sequence.num_computed
        if not sequence.output:
            sequence.num_cached = sequence.num_computed
        sequence.slot = self._free_slots.pop()
        insort(self.running, sequence, key=_urgency)

    def _stop_running(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._free_slots.append(sequence.slot)
        sequence.slot = -1
        self.cache.release(sequence)

    def _preempt(self, sequence: Sequence, iteration: Iteration) -> None:
        self._stop_running(sequence)
        self.add(sequence)
        iteration.preempted.append(sequence)
        iteration.chunks[:] = [chunk for chunk in iteration.chunks if chunk.sequence is not sequence]


def _urgency(sequence: Sequence) -> tuple[int, int]:
    return sequence.priority, sequence.arrival


def _chunk(sequence: Sequence, length: int) -> Chunk:
    return Chunk(
        sequence,
        sequence.num_computed,
        length,
        sequence.num_computed + length == sequence.num_tokens,
        sequence.num_tokens - len(sequence.prompt),
        len(sequence.block_table),
    )
