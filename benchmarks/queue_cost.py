"""What the queue costs an engine on a device: the same engine alone, and as a worker with Valkey, in one go.

    python -m benchmarks.queue_cost [--sequences 256] [--step-ms 12] [--steps 400]

The device is simulated: a step takes as long as it is told, beside whatever the host does, as CUDA graphs do.
Where the host keeps up, both sides take a step's time a step, and the ratio is 1. All sequences decode, and
text is made of every token; a client submits and then only waits. The floor is the device's own time.

Events hold the tokens of several steps where Redis is slower than the device; how many is printed.
"""

import argparse
import multiprocessing
import statistics
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any, cast

import anyio
import redis
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headrace.clients import AsyncClient
from headrace.worker.app import run_worker
from headrace.worker.assembly import Assembly
from headrace.worker.config import WorkerConfig
from headrace.worker.embedded import embedded_valkey
from headrace.worker.engine.detokenizer import Detokenizer
from headrace.worker.engine.engine import Engine
from headrace.worker.engine.iteration import Iteration
from headrace.worker.engine.sequence import SampledToken, SamplingParams, Sequence
from headrace.worker.engine.step import Step
from headrace.worker.model.load.text import TextEncoder
from headrace.worker.preparation import Preparation

MODEL = "simulated"
PROMPT = list(range(65, 91))
LEFT_OUT = 20
"""Steps at the beginning of a measurement that do not count."""


@dataclass(frozen=True, slots=True)
class Load:
    sequences: int
    step_seconds: float
    steps: int

    @property
    def tokens(self) -> int:
        """Of output of each sequence: it must not end while others are measured."""
        return self.steps + 4 * LEFT_OUT + self.sequences


@dataclass(frozen=True, slots=True)
class Pending:
    ends: float
    tokens: list[SampledToken]

    def collect(self) -> list[SampledToken]:
        time.sleep(max(0.0, self.ends - time.perf_counter()))
        return self.tokens


@dataclass
class Device:
    """Computes steps one after the other, each as long, whatever is in it."""

    step_seconds: float
    ends: float = 0.0

    def launch(self, iteration: Iteration) -> Pending:
        self.ends = max(self.ends, time.perf_counter()) + self.step_seconds
        return Pending(self.ends, [SampledToken(65)] * sum(chunk.samples for chunk in iteration.chunks))


@dataclass
class Measured:
    """Of consecutive steps in which all sequences decode."""

    load: Load
    times: list[float] = field(default_factory=list[float])
    processor: list[float] = field(default_factory=list[float])

    def take(self, step: Step) -> bool:
        """Whether that was enough."""
        if len(step.deltas) == self.load.sequences:
            self.times.append(time.perf_counter())
            self.processor.append(time.process_time())
        return len(self.times) == self.load.steps + LEFT_OUT

    @property
    def step_ms(self) -> float:
        return 1e3 * (self.times[-1] - self.times[LEFT_OUT]) / (len(self.times) - 1 - LEFT_OUT)

    @property
    def worst_ms(self) -> float:
        """Of twenty steps."""
        spans = [after - before for before, after in zip(self.times, self.times[1:], strict=False)]
        return 1e3 * statistics.quantiles(spans[LEFT_OUT:], n=20)[-1]

    @property
    def processor_ms(self) -> float:
        """Of the whole process, a step."""
        spent = self.processor[-1] - self.processor[LEFT_OUT]
        return 1e3 * spent / (len(self.processor) - 1 - LEFT_OUT)


def tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({symbol: at for at, symbol in enumerate(alphabet)}, []))
    made.decoder = decoders.ByteLevel()
    return made


def engine_of(load: Load) -> Engine:
    length = len(PROMPT) + load.tokens + 1
    return Engine(
        Device(load.step_seconds),
        Detokenizer.of(tokenizer()),
        num_blocks=load.sequences * (length // 16 + 2),
        block_size=16,
        max_batched_tokens=8192,
        max_sequences=load.sequences,
        max_model_len=length,
        overlap=True,
    )


def alone(load: Load, answer: Connection) -> None:
    engine = engine_of(load)
    sampling = SamplingParams(max_tokens=load.tokens)
    engine.add(Sequence(f"r{at}", PROMPT, sampling, arrival=at) for at in range(load.sequences))
    measured = Measured(load)
    while not measured.take(engine.step()):
        engine.credits(0)
    answer.send(measured)


def as_worker(load: Load, url: str, answer: Connection) -> None:
    engine = engine_of(load)
    wrapped = SimpleNamespace(backend_tokenizer=tokenizer(), chat_template=None)
    encoder = TextEncoder(
        cast(PreTrainedTokenizerFast, wrapped),
        model=MODEL,
        vocab_size=256,
        max_tokens=engine.max_model_len - 1,
    )
    assembly = Assembly(engine, Preparation(encoder, frozenset()), MODEL, [])
    measured = Measured(load)
    told = False

    def observe(step: Step, _: Engine) -> None:
        nonlocal told
        if not told and measured.take(step):
            told = True
            answer.send(measured)

    config = WorkerConfig(model=MODEL, redis=url, served_name=MODEL, max_sequences=load.sequences)
    anyio.run(lambda: run_worker(config, assemble=lambda _: assembly, observe=observe, stop=anyio.Event()))


def measure(target: Any, *arguments: object) -> Measured:
    spawning = multiprocessing.get_context("spawn")
    here, there = spawning.Pipe()
    process = spawning.Process(target=target, args=(*arguments, there), daemon=True)
    process.start()
    there.close()
    try:
        return here.recv()
    finally:
        process.kill()
        process.join()


async def submit(load: Load, url: str) -> None:
    async with AsyncClient(url, model=MODEL) as client:
        for _ in range(load.sequences):
            await client.submit(tokens=PROMPT, max_tokens=load.tokens, ignore_eos=True)


def processor_seconds(info: dict[str, Any]) -> float:
    return info["used_cpu_user"] + info["used_cpu_sys"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sequences", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--step-ms", type=float, default=12)
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    for sequences in arguments.sequences:
        load = Load(sequences, arguments.step_ms / 1e3, arguments.steps)
        bare = measure(alone, load)
        with embedded_valkey() as url:
            anyio.run(submit, load, url)
            with redis.Redis.from_url(url) as server:
                before: dict[str, Any] = server.info()  # pyright: ignore[reportAssignmentType]
                queued = measure(as_worker, load, url)
                after: dict[str, Any] = server.info()  # pyright: ignore[reportAssignmentType]
                logged = sum(server.xlen(name) for name in server.scan_iter("headrace:events:*", 1000))
                tokens = sum(
                    int(server.hget(name, "seq") or 0)  # pyright: ignore[reportArgumentType]
                    for name in server.scan_iter("headrace:request:*", 1000)
                )
        steps = tokens / sequences
        print(f"{sequences} sequences, {arguments.step_ms:g} ms a step, {arguments.steps} steps")
        print(f"{'':16}{'ms a step':>12}{'p95':>8}{'processor':>12}{'over device':>14}")
        for name, one in (("engine alone", bare), ("with queue", queued)):
            over = one.step_ms / arguments.step_ms
            print(f"{name:16}{one.step_ms:12.2f}{one.worst_ms:8.2f}{one.processor_ms:12.2f}{over:14.3f}")
        print(
            f"ratio {queued.step_ms / bare.step_ms:.3f}; {tokens / logged:.1f} tokens an event; "
            f"server {1e3 * (processor_seconds(after) - processor_seconds(before)) / steps:.2f} ms a step"
        )


if __name__ == "__main__":
    main()
