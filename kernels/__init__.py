"""Ops on tensors, each with a torch implementation (``cpu_*``) for CPUs and a Triton one for GPUs."""

from .activation import gelu_tanh_and_mul, silu_and_mul
from .attention import AttentionBatch, paged_attention
from .dispatch import Implementation
from .kv_cache import HeadNorm, rotate_and_write_kv, write_kv
from .normalization import rms_norm
from .sampling import Penalties, Sampled, SamplingTensors, sample

__all__ = [
    "AttentionBatch",
    "HeadNorm",
    "Implementation",
    "Penalties",
    "Sampled",
    "SamplingTensors",
    "gelu_tanh_and_mul",
    "paged_attention",
    "rms_norm",
    "rotate_and_write_kv",
    "sample",
    "silu_and_mul",
    "write_kv",
]
