"""What an iteration costs the host: ``schedule()`` and bookkeeping for many running sequences.

    python -m benchmarks.scheduler_cost [--sequences 256] [--iterations 400]

The runner does nothing, so all that is measured is the engine: ``step()``, and ``credits()``, which tells the
intake how much more fits. Printed apart: with text (detokenization of every token) and without. On a machine
that also does other things, the first quarter is nearer to what the code costs than the median.
"""

import argparse
import statistics
import time
from dataclasses import dataclass

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from headrace.worker.engine.detokenizer import Detokenizer
from headrace.worker.engine.engine import Engine
from headrace.worker.engine.iteration import Iteration
from headrace.worker.engine.scheduler import Scheduler
from headrace.worker.engine.sequence import SampledToken, SamplingParams, Sequence

TARGET_MS = 1.0


@dataclass
class IdleRunner:
    """Says the same token for everybody, at once."""

    def launch(self, iteration: Iteration) -> "IdleRunner":
        self.sampled = [SampledToken(65)] * sum(chunk.samples for chunk in iteration.chunks)
        return self

    def collect(self) -> list[SampledToken]:
        return self.sampled


def measure(sequences: int, iterations: int, *, text: bool) -> tuple[list[float], list[float]]:
    """Milliseconds of whole iterations and, of these, of ``schedule()``, for iterations of decodes only."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: at for at, symbol in enumerate(alphabet)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    silent = frozenset() if text else frozenset(range(256))
    engine = Engine(
        IdleRunner(),
        Detokenizer(tokenizer, {}, silent),
        num_blocks=sequences * 64,
        block_size=16,
        max_batched_tokens=sequences * 8,
        max_sequences=sequences,
        max_model_len=1024,
    )
    engine.add(
        Sequence(f"r{at}", [at % 256] * 8, SamplingParams(max_tokens=iterations + 50), arrival=at)
        for at in range(sequences)
    )
    schedule_times: list[float] = []
    schedule = Scheduler.schedule

    def timed(self: Scheduler, max_tokens: int | None = None) -> Iteration:
        start = time.perf_counter()
        iteration = schedule(self, max_tokens)
        schedule_times.append((time.perf_counter() - start) * 1e3)
        return iteration

    Scheduler.schedule = timed
    try:
        for _ in range(10):
            engine.step()
        schedule_times.clear()
        steps: list[float] = []
        for _ in range(iterations):
            start = time.perf_counter()
            step = engine.step()
            engine.credits(0)
            steps.append((time.perf_counter() - start) * 1e3)
            if len(step.deltas) != sequences:
                raise RuntimeError("not all sequences decode")
    finally:
        Scheduler.schedule = schedule
    return steps, schedule_times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--iterations", type=int, default=400)
    arguments = parser.parse_args()
    print(f"{arguments.sequences} running sequences, {arguments.iterations} iterations, milliseconds")
    print(f"{'':31}{'quarter':>8}{'median':>8}{'p95':>8}")
    for text in (False, True):
        steps, schedules = measure(arguments.sequences, arguments.iterations, text=text)
        name = "with text" if text else "without text"
        for what, times in ((f"iteration, {name}", steps), (f"  schedule(), {name}", schedules)):
            cuts = statistics.quantiles(times, n=20)
            print(f"{what:31}{cuts[4]:8.3f}{cuts[9]:8.3f}{cuts[-1]:8.3f}")
        if not text:
            ratio = statistics.median(steps) / TARGET_MS
            print(f"{'':31}{'':8}{ratio:8.2f} of the {TARGET_MS:g} ms target")


if __name__ == "__main__":
    main()
