"""Sampling parameters of a batch's rows, and the sampled tokens."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Penalties:
    """Penalties on tokens that occurred, for R rows. A row of 1, 0, 0 has none.

    Repetition (CTRL, arXiv 1909.05858) divides a positive logit and multiplies a negative one, once, if the
    token occurs in the prompt or the output. Then frequency is subtracted once per occurrence in the output,
    and presence once if there is any.
    """

    repetition: Tensor
    """float32 [R], more than 0; 1 is off."""
    presence: Tensor
    """float32 [R]; 0 is off."""
    frequency: Tensor
    """float32 [R]; 0 is off."""
    prompt: Tensor
    """int64 [R, P]: token ids in any order; -1 is padding."""
    output: Tensor
    """int64 [R, N]: token ids in any order; -1 is padding."""


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """Sampling parameters of R rows."""

    temperature: Tensor
    """float32 [R]; 0 is greedy: the argmax."""
    top_k: Tensor
    """int32 [R]; 0 is off."""
    top_p: Tensor
    """float32 [R], more than 0; 1 is off."""
    min_p: Tensor
    """float32 [R], 0 to 1; 0 is off."""
    seed: Tensor
    """int64 [R], any value."""
    position: Tensor
    """int64 [R]: index of the output token in its sequence. Each (seed, position) has its own noise."""
    penalties: Penalties | None = None
    filters: bool = True
    """False promises that top_k, top_p and min_p are off in every row, which saves the search for their
    cutoffs."""


@dataclass(slots=True)
class Sampled:
    """One token for each of R rows. The log-probabilities, base e, are those of the model: before
    temperature, penalties and filters."""

    tokens: Tensor
    """int64 [R]."""
    logprobs: Tensor | None = None
    """float32 [R], of ``tokens``."""
    top_tokens: Tensor | None = None
    """int64 [R, n]: the top n tokens by descending logit, equal ones by index."""
    top_logprobs: Tensor | None = None
    """float32 [R, n]."""
