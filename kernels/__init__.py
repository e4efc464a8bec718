"""Ops on tensors, each with a torch implementation, which is its definition, and a Triton one for GPUs."""

from .attention import AttentionBatch, paged_attention
from .dispatch import Implementation
from .kv_cache import rotate_and_write_kv, write_kv
from .sampling import Penalties, Sampled, SamplingTensors, sample

__all__ = [
    "AttentionBatch",
    "Implementation",
    "Penalties",
    "Sampled",
    "SamplingTensors",
    "paged_attention",
    "rotate_and_write_kv",
    "sample",
    "write_kv",
]
