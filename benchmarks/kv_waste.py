"""How much of the allocated KV cache holds nothing, at a working load.

    python -m benchmarks.kv_waste [--block-size 16] [--requests 400]

Requests arrive at random at a simulated engine (no model): prompts and outputs of mixed lengths, a third of
them beginning alike. After every iteration the allocated positions without a token are counted over all
allocated positions. The floor for unshared sequences is half a block each.
"""

import argparse
import random
from collections import Counter

from tokenizers import Tokenizer, models

from headrace.worker.engine.detokenizer import Detokenizer
from headrace.worker.engine.engine import Engine
from headrace.worker.engine.iteration import Iteration
from headrace.worker.engine.sequence import SampledToken, SamplingParams, Sequence

TARGET = 0.04


class RandomRunner:
    """Says random tokens at once."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._sampled: list[SampledToken] = []

    def launch(self, iteration: Iteration) -> "RandomRunner":
        samples = sum(chunk.samples for chunk in iteration.chunks)
        self._sampled = [SampledToken(self._random.randrange(1000)) for _ in range(samples)]
        return self

    def collect(self) -> list[SampledToken]:
        return self._sampled


def waste(sequences: list[Sequence], block_size: int) -> tuple[int, int]:
    """Allocated positions without a token, and allocated positions; shared blocks count once."""
    filled: dict[int, int] = {}
    for sequence in sequences:
        for index, block in enumerate(sequence.block_table):
            held = min(block_size, max(0, sequence.num_computed - index * block_size))
            filled[block] = max(filled.get(block, 0), held)
    allocated = len(filled) * block_size
    return allocated - sum(filled.values()), allocated


def simulate(block_size: int, requests: int, seed: int) -> tuple[float, float, Counter[str]]:
    """Mean share of waste over iterations, mean length of running sequences, and counts."""
    chance = random.Random(seed)
    engine = Engine(
        RandomRunner(seed),
        Detokenizer(Tokenizer(models.BPE()), {}, frozenset(range(1000))),
        num_blocks=32768 // block_size,
        block_size=block_size,
        max_batched_tokens=512,
        max_sequences=64,
        max_model_len=2048,
    )
    system = [chance.randrange(1000) for _ in range(120)]
    sequences: list[Sequence] = []
    for number in range(requests):
        prompt = [chance.randrange(1000) for _ in range(chance.randrange(40, 600))]
        if number % 3 == 0:
            prompt = system + prompt
        sampling = SamplingParams(max_tokens=chance.randrange(20, 300))
        sequences.append(Sequence(f"r{number}", prompt, sampling, arrival=number))
    waiting = list(reversed(sequences))
    live: dict[str, Sequence] = {}
    wasted = allocated = lengths = observed = 0
    counts: Counter[str] = Counter()
    while waiting or engine.has_work:
        while waiting and chance.random() < 0.5:
            sequence = waiting.pop()
            live[sequence.id] = sequence
            engine.add([sequence])
        step = engine.step()
        counts["iterations"] += 1
        counts["preemptions"] += len(step.preempted)
        for finished in step.finished:
            del live[finished.sequence_id]
        running = [sequence for sequence in live.values() if sequence.block_table]
        empty, total = waste(running, block_size)
        wasted += empty
        allocated += total
        lengths += sum(sequence.num_computed for sequence in running)
        observed += len(running)
    return wasted / allocated, lengths / observed, counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    share, length, counts = simulate(arguments.block_size, arguments.requests, arguments.seed)
    floor = (arguments.block_size - 1) / 2 / (length + (arguments.block_size - 1) / 2)
    print(
        f"block size {arguments.block_size}, {arguments.requests} requests, "
        f"{counts['iterations']} iterations, {counts['preemptions']} preemptions, "
        f"mean length {length:.0f} tokens"
    )
    print(
        f"waste {share:.2%} of allocated positions (floor without sharing {floor:.2%}, target {TARGET:.0%})"
    )


if __name__ == "__main__":
    main()
