"""The paged KV cache's bookkeeping: which block belongs to whom, and what a free one still holds.

Blocks are numbers; the tensors behind them belong to the runner. A full block is known by a hash of all
tokens up to its end, so that sequences with an equal prefix share it; a block whose last reference goes
keeps its content and its hash until it is taken for something else, least recently freed first.
The scheme is that of PagedAttention (Kwon et al., 2023) with hash-based prefix sharing.
"""

from array import array
from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import blake2b

from .sequence import Sequence


@dataclass(slots=True)
class PrefixStats:
    """Counted at admission, in tokens."""

    queried: int = 0
    hit: int = 0


@dataclass(slots=True)
class _Prefix:
    """What the cache knows of one sequence's leading blocks."""

    hashes: list[bytes] = field(default_factory=list[bytes])
    """Of each leading full block of known tokens, as far as it has been asked for."""
    num_published: int = 0
    """Leading blocks that other sequences may find by their hash."""


class KVCache:
    """Block tables over ``num_blocks`` blocks of ``block_size`` tokens each."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks: must be at least 1, got {num_blocks}")
        if block_size < 1:
            raise ValueError(f"block_size: must be at least 1, got {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.prefix_stats = PrefixStats()
        self._references = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._prefixes: dict[Sequence, _Prefix] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    def num_references(self, block: int) -> int:
        """How many sequences hold ``block``."""
        return self._references[block]

    def is_kept(self, block: int) -> bool:
        """Whether ``block`` can be found by what it holds."""
        return self._hash_of[block] is not None

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold ``num_tokens`` tokens."""
        return -(-num_tokens // self.block_size)

    def cached_prefix(self, sequence: Sequence) -> list[int]:
        """Blocks that already hold the sequence's longest cached prefix; takes no reference.

        Never the whole sequence: its last token must be computed for there to be logits to sample from.
        """
        blocks: list[int] = []
        if self.prefix_caching:
            for index in range((sequence.num_known - 1) // self.block_size):
                block = self._block_of.get(self._hash(sequence, index))
                if block is None:
                    break
                blocks.append(block)
        return blocks

    def num_reclaimed(self, blocks: list[int]) -> int:
        """How many of ``blocks`` nobody references, so that taking them uses up free blocks."""
        return sum(1 for block in blocks if not self._references[block])

    def share(self, sequence: Sequence, blocks: list[int]) -> None:
        """Begin the sequence's block table with cached ``blocks``, whose tokens then count as computed."""
        for block in blocks:
            if not self._references[block]:
                del self._free[block]
            self._references[block] += 1
        sequence.block_table = list(blocks)
        self._prefix(sequence).num_published = len(blocks)
        sequence.num_computed = len(blocks) * self.block_size

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Let the block table hold ``num_tokens`` tokens; False, and nothing taken, if blocks are short."""
        missing = self.blocks_for(num_tokens) - len(sequence.block_table)
        if missing > len(self._free):
            return False
        for _ in range(missing):
            block, _ = self._free.popitem(last=False)
            old_hash = self._hash_of[block]
            if old_hash is not None:
                del self._block_of[old_hash]
                self._hash_of[block] = None
            self._references[block] = 1
            sequence.block_table.append(block)
        return True

    def publish(self, sequence: Sequence) -> None:
        """Make the sequence's full blocks of computed, known tokens available to other sequences."""
        if not self.prefix_caching:
            return
        prefix = self._prefix(sequence)
        num_full = min(sequence.num_computed, sequence.num_known) // self.block_size
        for index in range(prefix.num_published, num_full):
            block = sequence.block_table[index]
            block_hash = self._hash(sequence, index)
            if self._hash_of[block] is None and block_hash not in self._block_of:
                self._hash_of[block] = block_hash
                self._block_of[block_hash] = block
        prefix.num_published = max(prefix.num_published, num_full)

    def release(self, sequence: Sequence) -> None:
        """Give up all of the sequence's blocks; it will have to be computed again."""
        # Back to front, so that of one sequence the beginning, which others may share, is reused last.
        for block in reversed(sequence.block_table):
            self._references[block] -= 1
            if not self._references[block]:
                self._free[block] = None
        sequence.block_table = []
        sequence.num_computed = 0
        self._prefix(sequence).num_published = 0

    def forget(self, sequence: Sequence) -> None:
        """Let go of what is known of a sequence that has ended and holds no blocks."""
        self._prefixes.pop(sequence, None)

    def exclusive_blocks(self, sequence: Sequence) -> int:
        """Blocks that ``release`` would make free."""
        return sum(1 for block in sequence.block_table if self._references[block] == 1)

    def check(self, sequences: list[Sequence]) -> None:
        """Assert that every block is free or referenced, and references equal the tables of ``sequences``."""
        counts = [0] * self.num_blocks
        for sequence in sequences:
            for block in sequence.block_table:
                counts[block] += 1
        if counts != self._references:
            raise AssertionError(f"references {self._references} differ from block tables {counts}")
        if {block for block, count in enumerate(counts) if not count} != set(self._free):
            raise AssertionError("free list differs from unreferenced blocks")
        if not self._prefixes.keys() >= set(sequences):
            raise AssertionError("a running sequence is unknown")
        for block_hash, block in self._block_of.items():
            if self._hash_of[block] != block_hash:
                raise AssertionError(f"block {block} is indexed under a hash it does not have")

    def _prefix(self, sequence: Sequence) -> _Prefix:
        prefix = self._prefixes.get(sequence)
        if prefix is None:
            prefix = self._prefixes[sequence] = _Prefix()
        return prefix

    def _hash(self, sequence: Sequence, index: int) -> bytes:
        hashes = self._prefix(sequence).hashes
        while len(hashes) <= index:
            start = len(hashes) * self.block_size
            parent = hashes[-1] if hashes else blake2b(sequence.salt, digest_size=16, person=b"salt").digest()
            digest = blake2b(parent, digest_size=16)
            digest.update(array("q", _tokens(sequence, start, start + self.block_size)).tobytes())
            hashes.append(digest.digest())
        return hashes[index]


def _tokens(sequence: Sequence, start: int, end: int) -> list[int]:
    """Known tokens ``start`` to ``end`` without joining prompt and output as a whole."""
    num_prompt = len(sequence.prompt)
    if end <= num_prompt:
        return sequence.prompt[start:end]
    if start >= num_prompt:
        return sequence.output[start - num_prompt : end - num_prompt]
    return sequence.prompt[start:] + sequence.output[: end - num_prompt]
