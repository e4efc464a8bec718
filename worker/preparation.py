"""A claimed request to a sequence of the engine: text to tokens, limits, sampling parameters."""

from hashlib import blake2b

from ..clients.protocol import Request
from .broker.entries import Claim
from .engine.sequence import SamplingParams, Sequence
from .model.load.text import TextEncoder


class Preparation:
    """Makes sequences of claims; called in a thread beside the engine's.

    Raises ``InvalidInputError`` (of ``headrace.worker.model``), naming field and limit, for what only the
    model can judge: too long, token ids out of range, no chat template.
    """

    def __init__(self, encoder: TextEncoder, eos_ids: frozenset[int]) -> None:
        self._encoder = encoder
        self._eos_ids = eos_ids

    def sequence(self, claim: Claim) -> Sequence:
        request, resumed = claim.request, claim.resumed
        return Sequence(
            id=request.id,
            prompt=self._prompt(request),
            sampling=self._sampling(request),
            priority=claim.priority,
            arrival=claim.arrival_ms,
            salt=(request.tenant or "").encode(),
            epoch=claim.epoch,
            output=self._encoder.output(resumed.tokens) if resumed else [],
            logprobs=list(resumed.logprobs or []) if resumed else [],
            logged_text=resumed.text if resumed else "",
        )

    def _prompt(self, request: Request) -> list[int]:
        if request.prompt is not None:
            return self._encoder.prompt(request.prompt)
        if request.messages is not None:
            return self._encoder.messages(
                [message.model_dump(exclude_unset=True) for message in request.messages]
            )
        return self._encoder.tokens(request.tokens or [])

    def _sampling(self, request: Request) -> SamplingParams:
        stop_tokens = frozenset(request.stop_tokens)
        return SamplingParams(
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            min_p=request.min_p,
            repetition_penalty=request.repetition_penalty,
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
            seed=_seed(request),
            stop=tuple(request.stop),
            stop_tokens=stop_tokens if request.ignore_eos else stop_tokens | self._eos_ids,
            logprobs=request.logprobs,
        )


def _seed(request: Request) -> int:
    if request.seed is not None:
        return request.seed
    # Any number would do the first time, but whoever resumes the request must draw the same again.
    return int.from_bytes(blake2b(request.id.encode(), digest_size=8).digest(), "big", signed=True)
