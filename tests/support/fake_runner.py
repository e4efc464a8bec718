"""A runner without a model: it keeps a simulated KV cache and fails when a block holds the wrong tokens."""

from dataclasses import dataclass, field
from hashlib import blake2b

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from headrace.worker.engine.detokenizer import Detokenizer
from headrace.worker.engine.iteration import Iteration
from headrace.worker.engine.sequence import SampledToken

VOCABULARY = 256


def byte_tokenizer() -> Tokenizer:
    """Ids 0 to 255, one for each byte, named as in byte-level BPE; the first ids are parts of characters."""
    first = list("Ãab©Ġ!")  # the two bytes of "é" among them
    alphabet = [*first, *sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(first))]
    tokenizer = Tokenizer(models.BPE({symbol: at for at, symbol in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_detokenizer() -> Detokenizer:
    return Detokenizer.of(byte_tokenizer())


def next_token(tokens: list[int], vocabulary: int = VOCABULARY) -> int:
    """What the simulated model says after ``tokens``: any function of all of them."""
    data = b",".join(str(token).encode() for token in tokens)
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big") % vocabulary


def continuation(prompt: list[int], length: int, vocabulary: int = VOCABULARY) -> list[int]:
    """The uninterrupted output, for comparison."""
    tokens = list(prompt)
    for _ in range(length):
        tokens.append(next_token(tokens, vocabulary))
    return tokens[len(prompt) :]


@dataclass
class FakeLaunched:
    sampled: list[SampledToken]

    def collect(self) -> list[SampledToken]:
        return self.sampled


@dataclass
class FakeRunner:
    """Computes at launch, in order, as a device stream does, from its own cache and last-token buffer."""

    block_size: int
    vocabulary: int = VOCABULARY
    cells: dict[tuple[int, int], int] = field(default_factory=dict)
    last_token: dict[int, int] = field(default_factory=dict)
    launches: int = 0
    iterations: list[list[tuple[str, int]]] = field(default_factory=list)

    def launch(self, iteration: Iteration) -> FakeLaunched:
        self.launches += 1
        self.iterations.append([(chunk.sequence.id, chunk.length) for chunk in iteration.chunks])
        sampled: list[SampledToken] = []
        for chunk in iteration.chunks:
            sequence = chunk.sequence
            known = sequence.prompt + sequence.output
            end = chunk.start + chunk.length
            new = known[chunk.start : end]
            if end > len(known):
                new.append(self.last_token[sequence.slot])
            assert len(new) == chunk.length > 0
            for position, token in enumerate(new, chunk.start):
                self.cells[self._cell(sequence.block_table, position)] = token
            held = [self.cells[self._cell(sequence.block_table, position)] for position in range(end)]
            assert held[: len(known)] == known[:end], f"the cache of {sequence.id} holds other tokens"
            if chunk.samples:
                token = next_token(held, self.vocabulary)
                self.last_token[sequence.slot] = token
                sampled.append(SampledToken(token))
        return FakeLaunched(sampled)

    def _cell(self, block_table: list[int], position: int) -> tuple[int, int]:
        return block_table[position // self.block_size], position % self.block_size
