"""A simulated asynchronous device: nothing it is given is computed before somebody waits for it."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from fake_runner import FakeRunner

from headrace.worker.engine.iteration import Chunk, Iteration
from headrace.worker.engine.sequence import SampledToken


@dataclass
class DeferredLaunched:
    number: int
    wait_for: Callable[[int], list[SampledToken]]

    def collect(self) -> list[SampledToken]:
        return self.wait_for(self.number)


@dataclass
class DeferredRunner:
    """Takes along at launch what the host knows, and computes, in order, when tokens are asked for."""

    runner: FakeRunner
    queue: deque[Iteration] = field(default_factory=deque)
    sampled: dict[int, list[SampledToken]] = field(default_factory=dict)
    events: list[tuple[str, int]] = field(default_factory=list)
    launches: int = 0
    computed: int = 0

    def launch(self, iteration: Iteration) -> DeferredLaunched:
        number = self.launches
        self.launches += 1
        self.events.append(("launch", number))
        self.queue.append(replace(iteration, chunks=[_as_of_now(chunk) for chunk in iteration.chunks]))
        return DeferredLaunched(number, self._wait_for)

    def _wait_for(self, number: int) -> list[SampledToken]:
        self.events.append(("collect", number))
        while number not in self.sampled:
            self.sampled[self.computed] = self.runner.launch(self.queue.popleft()).collect()
            self.computed += 1
        return self.sampled.pop(number)


def _as_of_now(chunk: Chunk) -> Chunk:
    sequence = chunk.sequence
    frozen = replace(sequence, output=list(sequence.output), block_table=list(sequence.block_table))
    return replace(chunk, sequence=frozen)
