"""A model without weights whose every output a test can compute on its own, from the request alone.

A token is a hash of all tokens before it, and of the seed where the request samples. The alphabet is small,
so that stop strings occur, and has one character of two tokens, so that text is held back.
"""

import signal
import time
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any, cast

from fake_runner import FakeRunner, byte_tokenizer
from transformers import PreTrainedTokenizerFast

from headrace.clients.protocol import Request, TokenLogprobs
from headrace.worker.ageing import Ageing
from headrace.worker.assembly import Assembly
from headrace.worker.config import WorkerConfig
from headrace.worker.engine.detokenizer import Detokenizer
from headrace.worker.engine.engine import Engine
from headrace.worker.engine.iteration import Iteration
from headrace.worker.engine.sequence import SampledToken
from headrace.worker.model.load.text import TextEncoder
from headrace.worker.preparation import Preparation

MODEL = "simulated"
MAX_MODEL_LEN = 512
POISON = "kill at "
"""A prompt that starts so kills its worker when output token ``N`` is due: "kill at N "."""

_CHARACTERS = "abcdefgh !?"
_FIRST_OF_TWO, _SECOND_OF_TWO = b"\xc3", b"\xa9"
"""The bytes of é."""


@cache
def _bytes_of_tokens() -> dict[int, bytes]:
    """What each token that the model says stands for."""
    tokenizer = byte_tokenizer()
    table = {tokenizer.encode(character).ids[0]: character.encode() for character in _CHARACTERS}
    first, second = tokenizer.encode("é").ids
    return table | {first: _FIRST_OF_TWO, second: _SECOND_OF_TWO}


@cache
def _spoken() -> tuple[list[int], int, int]:
    table = _bytes_of_tokens()
    second = next(token for token, data in table.items() if data == _SECOND_OF_TWO)
    first = next(token for token, data in table.items() if data == _FIRST_OF_TWO)
    return sorted(token for token in table if token != second), first, second


def choose(tokens: list[int], temperature: float, seed: int, logprobs: int | None) -> SampledToken:
    """What the model says after ``tokens``."""
    choices, first, second = _spoken()
    noise = f"|{seed}|{temperature}" if temperature else ""
    digest = blake2b(f"{tokens}{noise}".encode(), digest_size=8).digest()
    token = second if tokens[-1] == first else choices[digest[0] % len(choices)]
    if logprobs is None:
        return SampledToken(token)
    top = [(choices[(digest[1] + n) % len(choices)], -digest[2] / 64 - n) for n in range(logprobs)]
    return SampledToken(token, -digest[3] / 64, top)


@dataclass(frozen=True)
class Uninterrupted:
    """All that a request's run yields when nothing goes wrong."""

    prompt_tokens: int
    tokens: list[int]
    text: str
    logprobs: list[TokenLogprobs] | None
    finish_reason: str


def text_of(tokens: list[int], stop: list[str]) -> str:
    """The text of output tokens, cut before the first stop string, an incomplete character as U+FFFD."""
    table = _bytes_of_tokens()
    text = b"".join(table[token] for token in tokens).decode(errors="replace")
    found = min((at for string in stop if (at := text.find(string)) >= 0), default=-1)
    return text if found < 0 else text[:found]


def uninterrupted(request: Request) -> Uninterrupted:
    """Computed without the engine: what the promise is measured by."""
    prompt = request.tokens or byte_tokenizer().encode(request.prompt or "").ids
    seed = request.seed
    if seed is None:
        seed = int.from_bytes(blake2b(request.id.encode(), digest_size=8).digest(), "big", signed=True)
    limit = min(request.max_tokens, MAX_MODEL_LEN - len(prompt))
    output: list[int] = []
    logprobs: list[TokenLogprobs] = []
    reason = "length"
    while len(output) < limit:
        sampled = choose(prompt + output, request.temperature, seed, request.logprobs)
        if sampled.token in request.stop_tokens:
            reason = "stop"
            break
        output.append(sampled.token)
        if sampled.logprob is not None:
            logprobs.append((sampled.logprob, sampled.top or []))
        if text_of(output, request.stop) != text_of(output, []):
            reason = "stop"
            break
    return Uninterrupted(
        len(prompt),
        output,
        text_of(output, request.stop),
        logprobs if request.logprobs is not None else None,
        reason,
    )


@dataclass
class SimulatedRunner:
    """Says what ``choose`` says, ``step_seconds`` an iteration.

    With ``verified`` a simulated KV cache is kept beside it, which fails when a block holds the wrong tokens.
    """

    block_size: int
    step_seconds: float
    verified: bool = True
    _cache: FakeRunner = field(init=False)

    def __post_init__(self) -> None:
        self._cache = FakeRunner(self.block_size)

    def launch(self, iteration: Iteration) -> Any:
        if self.verified:
            self._cache.launch(iteration)
            self._cache.iterations.clear()
        sampled: list[SampledToken] = []
        for chunk in iteration.chunks:
            if not chunk.samples:
                continue
            sequence = chunk.sequence
            if _is_deadly(sequence.prompt, len(sequence.output)):
                signal.raise_signal(signal.SIGKILL)
            sampling = sequence.sampling
            known = sequence.prompt + sequence.output
            sampled.append(choose(known, sampling.temperature, sampling.seed, sampling.logprobs))
        if self.step_seconds:
            time.sleep(self.step_seconds)
        return SimpleNamespace(collect=lambda: sampled)


def _is_deadly(prompt: list[int], position: int) -> bool:
    start = _poison_tokens()
    if prompt[: len(start)] != list(start):
        return False
    text = byte_tokenizer().decode(prompt).removeprefix(POISON)
    return int(text.split()[0]) == position


@cache
def _poison_tokens() -> tuple[int, ...]:
    return tuple(byte_tokenizer().encode(POISON).ids)


def simulated_assembly(
    config: WorkerConfig, *, step_seconds: float, num_blocks: int, verified: bool = True
) -> Assembly:
    """A worker's engine over the simulated model."""
    tokenizer = byte_tokenizer()
    engine = Engine(
        SimulatedRunner(config.block_size, step_seconds, verified),
        Detokenizer.of(tokenizer),
        num_blocks=num_blocks,
        block_size=config.block_size,
        max_batched_tokens=config.max_batched_tokens,
        max_sequences=config.max_sequences,
        max_model_len=MAX_MODEL_LEN,
        ageing=Ageing.of(config.ageing),
    )
    wrapped = SimpleNamespace(backend_tokenizer=tokenizer, chat_template=None)
    encoder = TextEncoder(
        cast(PreTrainedTokenizerFast, wrapped), model=MODEL, vocab_size=256, max_tokens=MAX_MODEL_LEN - 1
    )
    return Assembly(engine, Preparation(encoder, frozenset()), MODEL, [])
