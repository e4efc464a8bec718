"""Stands in for CUDA graphs: what was recorded is run again."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class FakeRecorder:
    """Like a graph, a replay knows nothing but the tensors that the work was recorded with."""

    recorded: int = 0
    replayed: int = 0

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        self.recorded += 1
        work()

        def replay() -> None:
            self.replayed += 1
            work()

        return replay
