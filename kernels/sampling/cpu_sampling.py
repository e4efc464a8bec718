"""Sampling in torch: the reference, and what serves on the CPU.

Noise is bounded, so a token whose logit is too far below the row's best can never be drawn. Everything
costly, the sort for the filters and the noise, is done on the tokens that can.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from .noise import LARGEST_NOISE, SMALLEST_NOISE, gumbel, row_words, token_words
from .parameters import Penalties, Sampled, SamplingTensors

REACH: Final = LARGEST_NOISE - SMALLEST_NOISE
"""A token whose scaled logit is further below the best than this is never drawn."""
LIKELIEST: Final = 1024
"""Among so many tokens the cutoffs of top_k and top_p are looked for first."""
BINS: Final = 4096
"""Of values, for cutoffs that lie further down."""
MANY: Final = 0.25
"""Share of all tokens from which on noise is computed for every one: in order that is cheaper for each."""
PIECE: Final = 512
"""Of a row, whose largest is looked for first: torch finds values ten times as fast as where they are."""
ELEMENTS_AT_ONCE: Final = 1 << 22
"""About how many scaled logits are held at a time: 16 MB of float32."""


def sample(logits: Tensor, params: SamplingTensors | None, num_logprobs: int | None) -> Sampled:
    """See ``headrace.kernels.sample``."""
    penalized = logits
    if params is not None and params.penalties is not None:
        penalized = penalize(logits, params.penalties)
    best, tokens = _largest(penalized)
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


def _largest(x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each row of x [R, n], and the first index that has it; NaN counts as larger than all."""
    whole = x.shape[1] // PIECE * PIECE
    best = x[:, :whole].unflatten(1, (-1, PIECE)).amax(-1)
    if whole < x.shape[1]:
        best = torch.cat([best, x[:, whole:].amax(-1, keepdim=True)], 1)
    piece = best.argmax(-1, keepdim=True)
    # Past the end the last is read again, which is not the first of equals.
    index = (piece * PIECE + torch.arange(PIECE, device=x.device)).clamp_(max=x.shape[1] - 1)
    within = x.gather(1, index).argmax(-1, keepdim=True)
    return best.gather(1, piece)[:, 0], index.gather(1, within)[:, 0]


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
    kept = scaled >= cutoff[:, None]
    if int(kept.sum()) > MANY * kept.numel():
        noise = gumbel(row_words(params.seed, params.position, scaled.shape[1]))
        return (scaled + noise).masked_fill_(~kept, -torch.inf).max(-1).indices
    candidates = _where(scaled, kept)

    # The likely ones first: against their best, few of the others still have a chance.
    likely = candidates.value > -2
    best, token = _race(candidates.where(likely), params, scaled.shape)
    chance = candidates.value >= best[candidates.row] - LARGEST_NOISE - 1e-3
    other_best, other = _race(candidates.where(chance & ~likely), params, scaled.shape)
    return torch.where(other_best == best, token.minimum(other), torch.where(other_best > best, other, token))


def _race(candidates: _Candidates, params: SamplingTensors, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Value plus noise of each row's best candidate, and its token index (the lowest of equals)."""
    rows, vocabulary = shape
    words = token_words(params.seed, params.position, candidates.row, candidates.token, vocabulary)
    noisy = candidates.value + gumbel(words)
    best = noisy.new_full((rows,), -torch.inf).scatter_reduce_(0, candidates.row, noisy, "amax")
    index = torch.where(noisy == best[candidates.row], candidates.token, vocabulary)
    return best, index.new_full((rows,), vocabulary).scatter_reduce_(0, candidates.row, index, "amin")


def _where(x: Tensor, kept: Tensor) -> _Candidates:
    row, token = kept.nonzero(as_tuple=True)
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
    """The smallest scaled logit that each row's filters keep, float32 [R]; -inf or any lower than -REACH
    means all."""
    vocabulary = scaled.shape[1]
    cutoff = params.min_p.log()
    top = scaled.topk(min(LIKELIEST, vocabulary), dim=-1).values
    top_k = params.top_k.long()
    limited = (top_k > 0) & (top_k < vocabulary)
    if limited.any():
        near = (top_k.clamp(1, top.shape[1]) - 1)[:, None]
        kth = torch.where(limited, top.gather(1, near)[:, 0], -torch.inf)
        far = (limited & (top_k > top.shape[1])).nonzero()[:, 0]
        if far.numel():
            kth[far] = _crossing(scaled[far], torch.ones_like(scaled[far]), top_k[far].double())
        cutoff = torch.maximum(cutoff, kth)

    nucleus = (params.top_p < 1).nonzero()[:, 0]
    if not nucleus.numel():
        return cutoff
    scaled, top, floor = scaled[nucleus], top[nucleus], cutoff[nucleus]
    weights = scaled.exp().masked_fill_(scaled < floor[:, None], 0)
    target = params.top_p[nucleus].double() * weights.sum(-1, dtype=torch.float64)
    mass = top.exp().cumsum(-1, dtype=torch.float64)
    found = top.gather(1, (mass < target[:, None]).sum(-1, keepdim=True).clamp(max=top.shape[1] - 1))[:, 0]
    far = (mass[:, -1] < target).nonzero()[:, 0]
    if far.numel():
        found[far] = _crossing(scaled[far], weights[far], target[far])
    cutoff[nucleus] = torch.maximum(floor, found)
    return cutoff


def _crossing(x: Tensor, weights: Tensor, target: Tensor) -> Tensor:
    """The largest value in each row of x [R, n], none above 0, such that the weights of all elements that are
    at least that large sum to ``target`` [R].

    Values are sorted into bins first; exactly, only those of the bin that matters are.
    """
    rows = x.shape[0]
    lowest = x.amin(-1).clamp(-REACH, -1e-30)
    at = (x / lowest[:, None] * (BINS - 1)).clamp_(max=BINS - 1).long()
    flat = at + torch.arange(rows, device=x.device)[:, None] * BINS
    sums = torch.bincount(flat.flatten(), weights.flatten().double(), minlength=rows * BINS).view(rows, BINS)
    mass = sums.cumsum(-1)
    which = (mass < target[:, None]).sum(-1, keepdim=True).clamp(max=BINS - 1)
    above = (mass - sums).gather(1, which)
    candidates = _where(x, at == which)
    values, tokens, count = _sorted(candidates, rows)
    inside = weights.gather(1, tokens).double() * (values > -torch.inf)
    last = ((above + inside.cumsum(-1)) < target[:, None]).sum(-1)
    # Sums in another order may fall short of the target by a rounding.
    return values.gather(1, torch.minimum(last, count - 1).clamp(min=0)[:, None])[:, 0]


def _add_logprobs(result: Sampled, logits: Tensor, number: int) -> None:
    wide = logits.float()
    normalizer = wide.logsumexp(-1)
    result.logprobs = wide.gather(1, result.tokens[:, None])[:, 0] - normalizer
    if number:
        # topk leaves open which of equal logits it returns: take it for the cutoff only.
        cutoff = wide.topk(number, dim=-1).values[:, -1]
        values, tokens, _ = _sorted(_where(wide, wide >= cutoff[:, None]), wide.shape[0])
        result.top_tokens = tokens[:, :number]
        result.top_logprobs = values[:, :number] - normalizer[:, None]
