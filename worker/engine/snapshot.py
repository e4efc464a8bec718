"""What is under way, for whoever watches: sequences and blocks, bounded in size whatever the engine holds."""

from dataclasses import dataclass
from typing import Final, Literal

from .kv_cache import KVCache
from .scheduler import Scheduler
from .sequence import Sequence, SequenceStatus

MAX_SEQUENCES: Final = 64
MAX_CELLS: Final = 512

SequenceState = Literal["waiting", "prefill", "decode"]

_OWNERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
FREE, KEPT, SHARED, OTHER = ".-=*"


@dataclass(frozen=True, slots=True)
class SequenceProgress:
    """How far one sequence is. Counts are of tokens."""

    id: str
    priority: int
    state: SequenceState
    """``prefill`` as long as known tokens are uncomputed, those of a preempted sequence's output included."""
    prompt: int
    cached: int
    computed: int
    output: int
    limit: int
    """Of output."""
    blocks: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The most urgent ``MAX_SEQUENCES`` sequences, those running first, and a map of the blocks.

    ``block_map`` has one character for each ``block_stride``-th block: ``.`` free, ``-`` free with content
    that can be found again, ``=`` shared by sequences, ``*`` of a sequence not listed, else the letter of
    its owner: A to Z, a to z, 0 to 9, + and / for the first to the 64th of ``sequences``.
    """

    sequences: list[SequenceProgress]
    block_size: int
    block_stride: int
    block_map: str


def take_snapshot(scheduler: Scheduler) -> Snapshot:
    """Reads only, so it may be called while a step runs; counts are then those of the step under way."""
    cache = scheduler.cache
    running = scheduler.running[:MAX_SEQUENCES]
    waiting = scheduler.waiting[: MAX_SEQUENCES - len(running)]
    stride = -(-cache.num_blocks // MAX_CELLS)
    return Snapshot(
        sequences=[_progress(sequence) for sequence in (*running, *waiting)],
        block_size=cache.block_size,
        block_stride=stride,
        block_map=_map(cache, running, stride),
    )


def _progress(sequence: Sequence) -> SequenceProgress:
    num_prompt, output = len(sequence.prompt), len(sequence.output)
    # The token sampled last is computed by the next iteration, those pending are not known to be tokens yet.
    computed = min(sequence.num_computed, num_prompt + output)
    state: SequenceState = "decode" if computed >= num_prompt + output - 1 else "prefill"
    return SequenceProgress(
        id=sequence.id,
        priority=sequence.priority,
        state="waiting"
        if sequence.status is not SequenceStatus.RUNNING
        else "prefill"
        if not output
        else state,
        prompt=num_prompt,
        cached=sequence.num_cached,
        computed=computed,
        output=output,
        limit=sequence.max_length - num_prompt,
        blocks=len(sequence.block_table),
    )


def _map(cache: KVCache, running: list[Sequence], stride: int) -> str:
    shown = range(0, cache.num_blocks, stride)
    references = {block: cache.num_references(block) for block in shown}
    cells = {
        block: (OTHER if count == 1 else SHARED) if count else (KEPT if cache.is_kept(block) else FREE)
        for block, count in references.items()
    }
    single = {block for block, count in references.items() if count == 1}
    for owner, sequence in zip(_OWNERS, running, strict=False):
        for block in single.intersection(sequence.block_table):
            cells[block] = owner
    return "".join(cells.values())
