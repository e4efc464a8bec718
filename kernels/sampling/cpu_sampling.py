"""Sampling on the CPU, in torch.

Noise is bounded, so a token whose scaled logit is too far below the row's maximum can never be drawn. The
sort for the filters and the noise are computed for the other tokens only.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from .noise import LARGEST_NOISE, SMALLEST_NOISE, gumbel, row_words, token_words
from .parameters import Penalties, Sampled, SamplingTensors

REACH: Final = LARGEST_NOISE - SMALLEST_NOISE
"""A token whose scaled logit is further below the row's maximum is never drawn."""
TOP: Final = 1024
"""Largest logits of a row among which the cutoffs of top_k and top_p are searched first."""
BINS: Final = 4096
"""Bins of the histogram that finds cutoffs below those."""
DENSE: Final = 0.25
"""Share of kept tokens from which noise is computed for the whole row: in order, each costs less."""
PIECE: Final = 512
"""Columns of a piece of a row, for argmax in two steps: torch's amax is ten times as fast as its argmax."""
ELEMENTS_AT_ONCE: Final = 1 << 22
"""Scaled logits in memory at a time, about: 16 MB of float32."""


def sample(logits: Tensor, params: SamplingTensors | None, num_logprobs: int | None) -> Sampled:
    """See ``headrace.kernels.sample``."""
    penalized = logits
    if params is not None and params.penalties is not None:
        penalized = penalize(logits, params.penalties)
    maximum, tokens = _argmax(penalized)
    if params is not None:
        # Where the maximum is infinite or NaN there is no distribution to draw from: the argmax stands.
        drawn = ((params.temperature > 0) & maximum.isfinite()).nonzero()[:, 0]
        for rows in drawn.split(max(1, ELEMENTS_AT_ONCE // logits.shape[1])):
            scaled = (penalized[rows].float() - maximum[rows].float()[:, None]) / params.temperature[rows][
                :, None
            ]
            tokens[rows] = _draw(scaled, _select(params, rows))
    result = Sampled(tokens)
    if num_logprobs is not None:
        _add_logprobs(result, logits, num_logprobs)
    return result


def _argmax(x: Tensor) -> tuple[Tensor, Tensor]:
    """Maximum and argmax (the first of equals) of each row of x [R, n]; NaN is larger than all."""
    whole = x.shape[1] // PIECE * PIECE
    piece_max = x[:, :whole].unflatten(1, (-1, PIECE)).amax(-1)
    if whole < x.shape[1]:
        piece_max = torch.cat([piece_max, x[:, whole:].amax(-1, keepdim=True)], 1)
    piece = piece_max.argmax(-1, keepdim=True)
    # Past the end the last column is repeated, which is never the first of equals.
    index = (piece * PIECE + torch.arange(PIECE, device=x.device)).clamp_(max=x.shape[1] - 1)
    within = x.gather(1, index).argmax(-1, keepdim=True)
    return piece_max.gather(1, piece)[:, 0], index.gather(1, within)[:, 0]


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
    """Tokens of several rows with their scaled logits, by row, then by index: int64, values float32."""

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
    if int(kept.sum()) > DENSE * kept.numel():
        noise = gumbel(row_words(params.seed, params.position, scaled.shape[1]))
        return (scaled + noise).masked_fill_(~kept, -torch.inf).max(-1).indices
    candidates = _where(scaled, kept)

    # The probable ones first: most others cannot exceed their maximum even with the largest noise.
    probable = candidates.value > -2
    maximum, token = _gumbel_argmax(candidates.where(probable), params, scaled.shape)
    possible = candidates.value >= maximum[candidates.row] - LARGEST_NOISE - 1e-3
    other_maximum, other = _gumbel_argmax(candidates.where(possible & ~probable), params, scaled.shape)
    first = torch.where(other_maximum == maximum, token.minimum(other), token)
    return torch.where(other_maximum > maximum, other, first)


def _gumbel_argmax(
    candidates: _Candidates, params: SamplingTensors, shape: torch.Size
) -> tuple[Tensor, Tensor]:
    """Maximum and argmax (the lowest of equal tokens) of value plus noise over each row's candidates."""
    rows, vocabulary = shape
    words = token_words(params.seed, params.position, candidates.row, candidates.token, vocabulary)
    noisy = candidates.value + gumbel(words)
    maximum = noisy.new_full((rows,), -torch.inf).scatter_reduce_(0, candidates.row, noisy, "amax")
    index = torch.where(noisy == maximum[candidates.row], candidates.token, vocabulary)
    return maximum, index.new_full((rows,), vocabulary).scatter_reduce_(0, candidates.row, index, "amin")


def _where(x: Tensor, kept: Tensor) -> _Candidates:
    row, token = kept.nonzero(as_tuple=True)
    return _Candidates(row, token, x[row, token])


def _sorted(candidates: _Candidates, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Values of each row in descending order [rows, most], padded with -inf; their tokens; their number."""
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
    top = scaled.topk(min(TOP, vocabulary), dim=-1).values
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
