"""Sampling in torch: the reference, and what serves on the CPU.

Noise is bounded, so a token whose logit is too far below the row's best can never be drawn. Everything
costly, the sort for the filters and the noise, is done on the tokens that can.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from .noise import LARGEST_NOISE, SMALLEST_NOISE, gumbel, token_words
from .parameters import Penalties, Sampled, SamplingTensors

REACH: Final = LARGEST_NOISE - SMALLEST_NOISE
"""A token whose scaled logit is further below the best than this is never drawn."""
REACHES: Final = (4.0, 8.0, 12.0, 16.0, REACH)
"""How far below the best the cutoffs of top_k and top_p are looked for, one after the other."""
ELEMENTS_AT_ONCE: Final = 1 << 22
"""About how many scaled logits are held at a time: 16 MB of float32."""


def sample(logits: Tensor, params: SamplingTensors | None, num_logprobs: int | None) -> Sampled:
    """See ``headrace.kernels.sample``."""
    penalized = logits
    if params is not None and params.penalties is not None:
        penalized = penalize(logits, params.penalties)
    # On the CPU, max is several times as fast as argmax for bfloat16.
    best, tokens = penalized.max(dim=-1)
    if params is not None:
        # Where the best logit is infinite or NaN there is no distribution to draw from: its index stands.
        drawn = ((params.temperature > 0) & best.isfinite()).nonzero()[:, 0]
        for rows in drawn.split(max(1, ELEMENTS_AT_ONCE // logits.shape[1])):
            scaled = (penalized[rows].float() - best[rows].float()[:, None]) / params.temperature[rows][
                :, None
            ]
            tokens[rows] = _draw(scaled, _select(params, rows))
    result = Sampled(tokens)
    if num_logprobs is not None:
        _add_logprobs(result, logits, num_logprobs)
    return result


def penalize(logits: Tensor, penalties: Penalties) -> Tensor:
    """A float32 copy of logits [R, vocabulary] with the penalties applied."""
    penalized = logits.to(torch.float32, copy=True)
    row, at = (penalties.output >= 0).nonzero(as_tuple=True)
    token = penalties.output[row, at]
    counts = torch.zeros(logits.shape, dtype=torch.int32, device=logits.device)
    counts.index_put_((row, token), torch.ones_like(row, dtype=torch.int32), accumulate=True)

    prompt_row, at = (penalties.prompt >= 0).nonzero(as_tuple=True)
    token = torch.cat([token, penalties.prompt[prompt_row, at]])
    row = torch.cat([row, prompt_row])
    count = counts[row, token]
    value = penalized[row, token]
    repetition = penalties.repetition[row]
    value = torch.where(value > 0, value / repetition, value * repetition)
    value -= penalties.frequency[row] * count + penalties.presence[row] * (count > 0)
    penalized[row, token] = value
    return penalized


def _select(params: SamplingTensors, rows: Tensor) -> SamplingTensors:
    return SamplingTensors(
        params.temperature[rows],
        params.top_k[rows],
        params.top_p[rows],
        params.min_p[rows],
        params.seed[rows],
        params.position[rows],
        filters=params.filters,
    )


@dataclass(slots=True)
class _Candidates:
    """Tokens of several rows, by row, then by index: all int64 but the float32 values."""

    row: Tensor
    token: Tensor
    value: Tensor

    def where(self, kept: Tensor) -> "_Candidates":
        return _Candidates(self.row[kept], self.token[kept], self.value[kept])


def _draw(scaled: Tensor, params: SamplingTensors) -> Tensor:
    """A token index per row of scaled [R, vocabulary], whose largest element is 0 in each row."""
    cutoff = torch.full_like(params.temperature, -REACH)
    if params.filters:
        cutoff = torch.maximum(cutoff, _cutoffs(scaled, params))
    candidates = _at_least(scaled, cutoff)

    # The likely ones first: against their best, few of the others still have a chance.
    likely = candidates.value > -2
    best = _race(candidates.where(likely), params, scaled.shape)[0]
    chance = candidates.value >= best[candidates.row] - LARGEST_NOISE - 1e-3
    return _race(candidates.where(likely | chance), params, scaled.shape)[1]


def _race(candidates: _Candidates, params: SamplingTensors, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Value plus noise of each row's best candidate, and its token index (the lowest of equals)."""
    rows, vocabulary = shape
    words = token_words(params.seed, params.position, candidates.row, candidates.token, vocabulary)
    noisy = candidates.value + gumbel(words)
    best = noisy.new_full((rows,), -torch.inf).scatter_reduce_(0, candidates.row, noisy, "amax")
    index = torch.where(noisy == best[candidates.row], candidates.token, vocabulary)
    return best, index.new_full((rows,), vocabulary).scatter_reduce_(0, candidates.row, index, "amin")


def _at_least(x: Tensor, cutoff: Tensor) -> _Candidates:
    row, token = (x >= cutoff[:, None]).nonzero(as_tuple=True)
    return _Candidates(row, token, x[row, token])


def _sorted(candidates: _Candidates, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Values of each row in descending order, [rows, most], padded with -inf; their tokens; how many."""
    count = torch.bincount(candidates.row, minlength=rows)
    begin = count.cumsum(0) - count
    column = torch.arange(candidates.row.numel(), device=count.device) - begin[candidates.row]
    values = candidates.value.new_full((rows, int(count.max())), -torch.inf)
    tokens = torch.zeros(values.shape, dtype=torch.int64, device=count.device)
    values[candidates.row, column] = candidates.value
    tokens[candidates.row, column] = candidates.token
    values, order = values.sort(dim=-1, descending=True, stable=True)
    return values, tokens.gather(1, order), count


def _cutoffs(scaled: Tensor, params: SamplingTensors) -> Tensor:
    """The smallest scaled logit that each row's filters keep, float32 [R]; any lower than -REACH means
    all."""
    vocabulary = scaled.shape[1]
    least = params.min_p.log()
    top_k = torch.where(params.top_k > 0, params.top_k.clamp(max=vocabulary), vocabulary).long()
    limited = top_k < vocabulary
    nucleus = params.top_p < 1
    total = scaled.exp().sum(-1, dtype=torch.float64)

    result = least.clone()
    pending = (limited | nucleus).nonzero()[:, 0]
    for reach in REACHES:
        if not pending.numel():
            break
        floor = least[pending].clamp(min=-reach)
        values, _, count = _sorted(_at_least(scaled[pending], floor), pending.numel())
        k = top_k[pending]
        kth = values.gather(1, (torch.minimum(k, count) - 1)[:, None])[:, 0]
        kept = values >= kth[:, None]
        mass = (values.double().exp() * kept).cumsum(-1)
        # What min_p and top_k left is all here if one of the two ends above the floor, else it is the whole
        # row.
        closed = (count >= k) | (least[pending] >= -reach)
        whole = torch.where(limited[pending] | (params.min_p[pending] > 0), mass[:, -1], total[pending])
        enough = mass >= params.top_p[pending].double()[:, None] * whole[:, None]
        last = enough.int().argmax(-1)
        in_nucleus = values.gather(1, last[:, None])[:, 0]
        cutoff = torch.where(nucleus[pending] & enough.any(-1), torch.maximum(kth, in_nucleus), kth)
        settled = (
            closed | (~limited[pending] & (params.min_p[pending] == 0) & enough.any(-1)) | (reach == REACH)
        )
        result[pending[settled]] = torch.maximum(cutoff, floor)[settled]
        pending = pending[~settled]
    return result


def _add_logprobs(result: Sampled, logits: Tensor, number: int) -> None:
    wide = logits.float()
    normalizer = wide.logsumexp(-1)
    result.logprobs = wide.gather(1, result.tokens[:, None])[:, 0] - normalizer
    if number:
        # topk leaves open which of equal logits it returns: take it for the cutoff only.
        cutoff = wide.topk(number, dim=-1).values[:, -1]
        values, tokens, _ = _sorted(_at_least(wide, cutoff), wide.shape[0])
        result.top_tokens = tokens[:, :number]
        result.top_logprobs = values[:, :number] - normalizer[:, None]
