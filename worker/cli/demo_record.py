"""What happened in a demonstration, kept as it goes: for the display, and for the summary."""

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .demo_prompts import DemoPrompt

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from ..engine.step import Step

_RATE_WINDOW = 4.0


@dataclass(slots=True)
class Progress:
    """One request: what its client has received, and what its sequence looked like last."""

    prompt: DemoPrompt
    state: str = "to come"
    computed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    blocks: int = 0
    text: str = ""
    submitted: float = 0.0
    first_token: float | None = None
    ended: float | None = None


@dataclass(slots=True)
class Work:
    """One sequence in one iteration."""

    name: str
    kind: str
    tokens: int
    blocks: int


@dataclass(slots=True)
class Record:
    """The whole demonstration. Times are monotonic, in seconds."""

    requests: dict[str, Progress]
    block_size: int
    started: float = field(default_factory=time.monotonic)
    iterations: int = 0
    mixed_iterations: int = 0
    preemptions: int = 0
    peak_blocks: int = 0
    blocks_total: int = 0
    blocks_used: int = 0
    prefix_hit_tokens: int = 0
    allocated_positions: int = 0
    """Cache positions in block tables, added up over iterations; and how many of them held nothing."""
    empty_positions: int = 0
    running: int = 0
    waiting: int = 0
    batch_total: int = 0
    work: list[Work] = field(default_factory=list[Work])
    said: dict[str, str] = field(default_factory=dict[str, str])
    """Text that the last step brought, by request."""
    recent: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])

    def observe(self, step: "Step", engine: "Engine") -> None:
        """Note one engine step."""
        status = engine.status
        self.blocks_total = status.blocks_total
        self.blocks_used = status.blocks_total - status.blocks_free
        self.prefix_hit_tokens = status.prefix_hit_tokens
        self.running, self.waiting = status.running, status.waiting
        self.preemptions += len(step.preempted)
        self.work = []
        for chunk in step.chunks:
            sequence = chunk.sequence
            kind = "prefill" if chunk.start < len(sequence.prompt) else "decode"
            self.work.append(Work(sequence.id, kind, chunk.length, chunk.num_blocks))
            progress = self.requests[sequence.id]
            progress.state, progress.blocks = kind, chunk.num_blocks
            progress.computed = chunk.start + chunk.length
            progress.prompt_tokens = len(sequence.prompt)
            positions = chunk.num_blocks * self.block_size
            self.allocated_positions += positions
            self.empty_positions += positions - progress.computed
        self.said = {delta.sequence_id: delta.text for delta in step.deltas}
        # Blocks of a sequence that ended in this step are free already, but were in use.
        self.peak_blocks = max(self.peak_blocks, self.blocks_used)
        if self.work:
            self.iterations += 1
            self.batch_total += len(self.work)
            self.mixed_iterations += len({work.kind for work in self.work}) == 2
        now = time.monotonic()
        self.recent.append((now, sum(len(delta.tokens) for delta in step.deltas)))
        self.recent = [(at, count) for at, count in self.recent if at > now - _RATE_WINDOW]

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second of the last four seconds."""
        if len(self.recent) < 2:
            return 0.0
        return sum(count for _, count in self.recent[1:]) / (self.recent[-1][0] - self.recent[0][0])

    def summary(self, model: str) -> dict[str, Any]:
        """The demonstration in figures."""
        requests = self.requests.values()
        first = min(request.submitted for request in requests)
        seconds = max(request.ended or first for request in requests) - first
        output = sum(request.output_tokens for request in requests)
        return {
            "model": model,
            "requests": [
                {
                    "name": request.prompt.name,
                    "state": request.state,
                    "prompt_tokens": request.prompt_tokens,
                    "output_tokens": request.output_tokens,
                    "time_to_first_token": round((request.first_token or 0) - request.submitted, 3),
                    "seconds": round((request.ended or 0) - request.submitted, 3),
                    "text": request.text,
                }
                for request in requests
            ],
            "seconds": round(seconds, 2),
            "output_tokens": output,
            "tokens_per_second": round(output / seconds, 1) if seconds else 0.0,
            "iterations": self.iterations,
            "iterations_mixing_prefill_and_decode": self.mixed_iterations,
            "sequences_per_iteration": round(self.batch_total / max(1, self.iterations), 2),
            "preemptions": self.preemptions,
            "prefix_cache_hit_tokens": self.prefix_hit_tokens,
            "kv_block_size": self.block_size,
            "kv_blocks": self.blocks_total,
            "kv_blocks_peak": self.peak_blocks,
            "kv_blocks_at_end": self.blocks_used,
            "kv_waste": round(self.empty_positions / max(1, self.allocated_positions), 3),
        }
