"""The unit the engine works on: one request's tokens, how far they are computed, and where their KV lies."""

from dataclasses import dataclass, field
from enum import Enum

TokenLogprobs = tuple[float, list[tuple[int, float]]]
"""One output token's own log-probability, and the most likely tokens with theirs."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token of one sequence is chosen, and when the sequence ends."""

    max_tokens: int = 256
    temperature: float = 0.0
    """0 picks the most likely token."""
    top_p: float = 1.0
    top_k: int = 0
    """0 is off."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    """64-bit; noise is a function of it and of the output position, of nothing else."""
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    """Token ids that end the sequence and are not part of its output; end-of-sequence ids are among them
    unless the request ignores those."""
    logprobs: int | None = None
    """None is off; n asks for the chosen token's log-probability and the n most likely tokens."""

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One token that the model chose.

    ``logprob`` and ``top`` (token, log-probability; most likely first) are of the distribution before
    temperature and filters, in nats; None where the request did not ask.
    """

    token: int
    logprob: float | None = None
    top: list[tuple[int, float]] | None = None


class SequenceStatus(Enum):
    """Where a sequence stands in the batch. Set by the scheduler."""

    WAITING = "waiting"
    """For its first admission."""
    RUNNING = "running"
    """In the batch, with blocks and a slot."""
    PREEMPTED = "preempted"
    """Its blocks were taken from it; it waits to be computed again."""
    FINISHED = "finished"
    """Ended, or forgotten."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A request inside the engine. Compared by identity.

    There are no phases: an iteration brings ``num_computed`` closer to the number of known tokens, and the
    sequence samples in the iteration in which they become equal.
    """

    id: str
    prompt: list[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 1
    """0 is served first."""
    arrival: int = 0
    """When the request was submitted, in milliseconds."""
    salt: bytes = b""
    """Sequences of different salt never share cache blocks."""
    epoch: int = 0
    """Which claim of the request this is."""

    output: list[int] = field(default_factory=list[int])
    """Sampled tokens that the host knows, those of earlier epochs included."""
    logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])
    """One item for each output token, if the request asked for them."""
    logged_text: str = ""
    """Text of the output, as earlier epochs have delivered it."""
    num_computed: int = 0
    """Tokens, from the front, whose K and V are in the cache, or will be once the launched iterations end."""
    num_pending: int = 0
    """Tokens sampled in launched iterations that the host has not read yet."""
    block_table: list[int] = field(default_factory=list[int])
    num_cached: int = 0
    """Prompt tokens found in the cache at first admission."""
    num_tokens: int = 0
    """Tokens of prompt and output, pending ones included. Kept by the engine, as is ``max_length``."""
    max_length: int = 0
    """Tokens at which the sequence ends: after ``max_tokens`` of output, or where the model ends."""
    virtual_arrival: int = 0
    """The lower goes first: see ``Ageing``. Kept by the scheduler, as are the next two."""
    num_preempted: int = 0
    """Times that it has lost its blocks."""
    spared_until: int = 0
    """Milliseconds: before that, none that waits displaces it."""
    num_resumed: int = 0
    """Output tokens with which it came, of earlier epochs."""
    status: SequenceStatus = SequenceStatus.WAITING
    slot: int = -1
    """Row of the runner's per-sequence device state; -1 unless running."""

    def begin(self, max_model_len: int) -> None:
        """Join the engine with the output that is there: all of it is to be computed."""
        num_prompt = len(self.prompt)
        self.num_resumed = len(self.output)
        self.num_tokens = num_prompt + len(self.output)
        self.max_length = min(num_prompt + self.sampling.max_tokens, max_model_len)

    @property
    def num_known(self) -> int:
        """Tokens of prompt and output that the host knows."""
        return self.num_tokens - self.num_pending

    @property
    def is_complete(self) -> bool:
        """Nothing more is to be computed once the pending tokens are known."""
        return self.num_tokens >= self.max_length

    @property
    def num_uncomputed(self) -> int:
        return self.num_tokens - self.num_computed
