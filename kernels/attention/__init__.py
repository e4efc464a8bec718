"""Attention over a paged KV cache: the op, its float64 reference, the CPU path and the Triton kernels."""

import torch
from torch import Tensor

from ..dispatch import Implementation, choose
from ..fp8 import check_scales
from .batch import AttentionBatch
from .cpu_attention import attend as attend_on_cpu
from .reference import reference_attention

__all__ = ["AttentionBatch", "paged_attention", "reference_attention"]


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    out: Tensor | None = None,
    implementation: Implementation | None = None,
) -> Tensor:
    """Paged causal attention of a flat batch's queries over their sequences' cached keys and values.

    Prefill, chunks of a prefill, decode and any mix of them are one call. Query ``i`` of a sequence with
    ``n`` queries and length ``l`` is its token ``p = l - n + i`` and sees the keys ``k <= p``. The keys and
    values of the batch's own tokens must be in the cache already (see ``write_kv``).

    Args:
        query: [T, heads, head_dim], float32, float16 or bfloat16. Head ``h`` reads KV head ``h // (heads /
            kv_heads)``.
        key_cache: [num_blocks, kv_heads, block_size, head_dim], the query's dtype or float8_e4m3fn.
        value_cache: as ``key_cache``.
        batch: query starts, lengths and block tables of the sequences.
        scale: factor of the scores before anything else, usually ``head_dim ** -0.5``.
        sliding_window: with ``W``, a query at ``p`` sees ``p - W < k <= p`` only. Blocks wholly outside of
            every query's window are not read, so their table entries may be stale.
        softcap: with ``c``, scores become ``c * tanh(score / c)`` (Gemma 2, arXiv 2408.00118).
        sinks: [heads]: a logit per head that takes part in the softmax without a value (arXiv 2309.17453, as
            in gpt-oss). It is neither scaled nor capped.
        key_scale: float32 [kv_heads], for a float8 cache: a stored key times this is the key. 1 when absent.
        value_scale: as ``key_scale``.
        out: output tensor, [T, heads, head_dim]; allocated when absent.
        implementation: ``"torch"``, ``"triton"`` or None for the default one.

    Returns:
        [T, heads, head_dim] of the query's dtype. Scores and sums are computed in float32 (float64 for a
        float64 query, which only torch takes).

    Unused positions of the cache, whatever they hold, do not influence the result. With Triton, a sequence's
    result is the same bit for bit whatever else is in the batch; nothing waits for the device and a call can
    be captured in a CUDA graph.

    Raises:
        ValueError: when shapes, dtypes or devices do not fit together; the message names the argument.
    """
    _check(query, key_cache, value_cache, batch, sliding_window, softcap, sinks, out)
    check_scales(key_cache, key_scale=key_scale, value_scale=value_scale)
    if choose(query, implementation) == "triton":
        from .triton_attention import attend as attend_with_triton

        attend = attend_with_triton
    else:
        attend = attend_on_cpu
    if out is None:
        out = torch.empty_like(query)
    attend(
        query,
        key_cache,
        value_cache,
        batch,
        out,
        scale=scale,
        sliding_window=sliding_window,
        softcap=softcap,
        sinks=sinks,
        key_scale=key_scale,
        value_scale=value_scale,
    )
    return out


def _check(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: AttentionBatch,
    sliding_window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
    out: Tensor | None,
) -> None:
    if query.dim() != 3:
        raise ValueError(f"query: expected [T, heads, head_dim], got shape {tuple(query.shape)}")
    if key_cache.dim() != 4:
        raise ValueError(
            f"key_cache: expected [num_blocks, kv_heads, block_size, head_dim], got {tuple(key_cache.shape)}"
        )
    if value_cache.shape != key_cache.shape or value_cache.dtype != key_cache.dtype:
        raise ValueError(
            f"value_cache: {value_cache.dtype} {tuple(value_cache.shape)} differs from key_cache: "
            f"{key_cache.dtype} {tuple(key_cache.shape)}"
        )
    _, heads, head_dim = query.shape
    kv_heads = key_cache.shape[1]
    if key_cache.shape[3] != head_dim:
        raise ValueError(f"key_cache: head_dim {key_cache.shape[3]} differs from the query's {head_dim}")
    if heads % kv_heads:
        raise ValueError(f"query: {heads} heads are no multiple of the {kv_heads} KV heads")
    if key_cache.dtype not in (query.dtype, torch.float8_e4m3fn):
        raise ValueError(
            f"key_cache: {key_cache.dtype} is neither the query's {query.dtype} nor float8_e4m3fn"
        )
    sequences = batch.lengths.shape[0]
    if batch.query_start.shape != (sequences + 1,):
        raise ValueError(
            f"batch.query_start: expected [{sequences + 1}] for {sequences} lengths, "
            f"got {tuple(batch.query_start.shape)}"
        )
    if batch.block_table.dim() != 2 or batch.block_table.shape[0] != sequences:
        raise ValueError(
            f"batch.block_table: expected [{sequences}, max_blocks], got {tuple(batch.block_table.shape)}"
        )
    for name in ("query_start", "lengths", "block_table"):
        tensor: Tensor = getattr(batch, name)
        if tensor.dtype != torch.int32:
            raise ValueError(f"batch.{name}: expected int32, got {tensor.dtype}")
        if tensor.device != query.device:
            raise ValueError(f"batch.{name}: is on {tensor.device}, the query on {query.device}")
    if sliding_window is not None and sliding_window < 1:
        raise ValueError(f"sliding_window: expected at least 1, got {sliding_window}")
    if softcap is not None and softcap <= 0:
        raise ValueError(f"softcap: expected more than 0, got {softcap}")
    if sinks is not None and sinks.shape != (heads,):
        raise ValueError(f"sinks: expected [{heads}], got {tuple(sinks.shape)}")
    if out is not None and (out.shape != query.shape or out.dtype != query.dtype):
        raise ValueError(f"out: {out.dtype} {tuple(out.shape)} differs from the query's shape or dtype")
