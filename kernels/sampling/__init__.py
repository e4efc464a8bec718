"""Sampling of tokens from logits."""

import torch
from torch import Tensor

from ..dispatch import Implementation, choose
from .cpu_sampling import sample as sample_on_cpu
from .parameters import Penalties, Sampled, SamplingTensors

__all__ = ["Penalties", "Sampled", "SamplingTensors", "sample"]

LARGEST_NUM_LOGPROBS = 64


def sample(
    logits: Tensor,
    params: SamplingTensors | None,
    *,
    num_logprobs: int | None = None,
    implementation: Implementation | None = None,
) -> Sampled:
    """Sample one token for each row of logits.

    In this order: penalties; at temperature 0, the argmax (the first of equal logits); else division by the
    temperature, min_p, top_k, top_p, and a draw from the tokens kept.

    - min_p keeps tokens of at least ``min_p`` times the largest probability;
    - top_k keeps the k largest logits;
    - top_p keeps the nucleus: the smallest set of most probable tokens that holds ``top_p`` of the
      probability that min_p and top_k left.

    No filter tells equal logits apart: those equal to the last one kept are kept too.

    The draw adds Gumbel noise and takes the largest sum (Gumbel-max; Maddison et al., arXiv 1411.0030). The
    noise is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) with the seed
    as key and the position and token index as counter, the same 32 bits in each implementation. So a row's
    token depends on its own logits, parameters, seed and position, and on nothing else in the batch.

    Args:
        logits: [R, vocabulary], float32, float16 or bfloat16. Not changed.
        params: sampling parameters of each row; None is greedy for every row.
        num_logprobs: None for no log-probabilities, 0 for the sampled token's, n for those of the top
            n, too.
        implementation: ``"torch"``, ``"triton"`` or None for the default one.

    Raises:
        ValueError: when shapes or dtypes do not fit together; the message names the argument.
    """
    _check(logits, params, num_logprobs)
    if choose(logits, implementation) == "triton":
        from .triton_sampling import sample as sample_with_triton

        return sample_with_triton(logits, params, num_logprobs)
    return sample_on_cpu(logits, params, num_logprobs)


def _check(logits: Tensor, params: SamplingTensors | None, num_logprobs: int | None) -> None:
    if logits.dim() != 2 or not logits.shape[1]:
        raise ValueError(f"logits: expected [R, vocabulary], got shape {tuple(logits.shape)}")
    if num_logprobs is not None and not 0 <= num_logprobs <= min(LARGEST_NUM_LOGPROBS, logits.shape[1]):
        limit = min(LARGEST_NUM_LOGPROBS, logits.shape[1])
        raise ValueError(f"num_logprobs: expected 0 to {limit}, got {num_logprobs}")
    if params is None:
        return
    rows = logits.shape[0]
    expected = {
        "temperature": torch.float32,
        "top_k": torch.int32,
        "top_p": torch.float32,
        "min_p": torch.float32,
        "seed": torch.int64,
        "position": torch.int64,
    }
    for name, dtype in expected.items():
        _check_row_tensor(f"params.{name}", getattr(params, name), dtype, rows)
    if params.penalties is None:
        return
    for name in ("repetition", "presence", "frequency"):
        _check_row_tensor(f"params.penalties.{name}", getattr(params.penalties, name), torch.float32, rows)
    for name in ("prompt", "output"):
        history: Tensor = getattr(params.penalties, name)
        if history.dim() != 2 or history.shape[0] != rows or history.dtype != torch.int64:
            given = f"{history.dtype} {tuple(history.shape)}"
            raise ValueError(f"params.penalties.{name}: expected int64 [{rows}, any], got {given}")


def _check_row_tensor(name: str, tensor: Tensor, dtype: torch.dtype, rows: int) -> None:
    if tensor.shape != (rows,) or tensor.dtype != dtype:
        raise ValueError(f"{name}: expected {dtype} [{rows}], got {tensor.dtype} {tuple(tensor.shape)}")
