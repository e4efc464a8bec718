"""Every kernel and every configuration that can be chosen, compiled for every target, with what it costs.

    python -m benchmarks.compile_matrix [--quick] [--arch sm_90 ...] [--workers N]

No GPU is needed. Exits with status 1 when attention or sampling spills registers, when something needs more
shared memory than there is, when bfloat16 prompts on sm_90 do not use wgmma, or when sequences with one query
are computed in another way beside a prompt.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

import torch
from torch import Tensor

from headrace.kernels import AttentionBatch, HeadNorm, Penalties, SamplingTensors
from headrace.kernels.activation.triton_activation import plan as plan_activation
from headrace.kernels.attention.triton_attention import plan as plan_attention
from headrace.kernels.configs import Architecture
from headrace.kernels.kv_cache.triton_rotate import plan_rotate_and_write
from headrace.kernels.kv_cache.triton_write import plan_write
from headrace.kernels.launch import Launch
from headrace.kernels.normalization.triton_rms_norm import plan as plan_rms_norm
from headrace.kernels.sampling.triton_sampling import plan as plan_sampling

from .ahead_of_time import SHARED_MEMORY, Compiled, compile_launch
from .compiled_code import tail_digest

ARCHITECTURES: tuple[Architecture, ...] = ("sm_80", "sm_86", "sm_90", "sm_100", "gfx942")
HEAD_DIMS = (64, 80, 96, 128, 256)
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float8_e4m3fn: "fp8"}


@dataclass(frozen=True, slots=True)
class Case:
    """One compilation: a launch, and what to call it."""

    op: str
    variant: str
    launch: Launch


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    arch: Architecture
    op: str
    variant: str
    tile: str
    warps: int
    stages: str
    compiled: Compiled
    decode_code: str | None = None
    """Of attention, a digest of the code for sequences with one query."""

    @property
    def problem(self) -> str | None:
        """Which rule the kernel breaks, if one."""
        if self.compiled.spilled_bytes and self.op.split()[0] in ("attention", "sampling"):
            return f"spills {self.compiled.spilled_bytes} bytes"
        if self.compiled.shared_bytes > SHARED_MEMORY[self.arch] * 1024:
            return f"needs {self.compiled.shared_bytes} bytes of shared memory"
        tensor_cores = self.arch == "sm_90" and self.op == "attention mixed" and "bf16" in self.variant
        if tensor_cores and "wgmma" not in self.compiled.instructions:
            return "does not use wgmma"
        return None


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor without storage."""
    return torch.empty(*shape, dtype=dtype, device="meta")


def cases(arch: Architecture, *, quick: bool) -> Iterator[Case]:
    """All compilations for one architecture; with ``quick``, one of each kind."""
    bf16, fp16, fp32, fp8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
    if quick:
        shapes = [(128, bf16, bf16, 4), (256, bf16, bf16, 4), (128, bf16, fp8, 4)]
    else:
        kinds = ((bf16, bf16), (bf16, fp8), (fp16, fp16), (fp16, fp8), (fp32, fp32))
        shapes = [(dim, dtype, cache, 4) for dim in HEAD_DIMS for dtype, cache in kinds]
        shapes += [(128, bf16, bf16, 1), (128, bf16, bf16, 7), (128, bf16, bf16, 32)]
    for dim, dtype, cache, group in shapes:
        yield from attention_cases(arch, dim, dtype, cache, group, rich=False)
    for dim in (128,) if quick else HEAD_DIMS:
        yield from attention_cases(arch, dim, bf16, bf16, 4, rich=True)
    for dim, dtype, cache in ((128, bf16, bf16), (128, bf16, fp8), (80, fp32, fp32)):
        if not quick or cache == fp8:
            yield from write_cases(arch, dim, dtype, cache)
    for size in (1024,) if quick else (64, 128, 256, 640, 1024, 4096, 8192):
        yield from small_cases(size)
    for vocabulary in (262_144,) if quick else (32_000, 151_936, 262_144):
        yield from sampling_cases(vocabulary, quick=quick)


def attention_cases(
    arch: Architecture, dim: int, dtype: torch.dtype, cache: torch.dtype, group: int, *, rich: bool
) -> Iterator[Case]:
    """A mixed batch and one that only decodes; rich: with sliding window, softcap and sinks."""
    kv_heads, sequences = 8, 32
    keys = empty(1024, kv_heads, 16, dim, dtype=cache)
    ints = [empty(*shape, dtype=torch.int32) for shape in ((sequences + 1,), (sequences,), (sequences, 512))]
    scale = empty(kv_heads) if cache != dtype else None
    kind = NAMES[dtype] if cache == dtype else f"{NAMES[dtype]}/{NAMES[cache]}"
    variant = f"{kind} d={dim} group={group}" + (" window softcap sinks" if rich else "")
    for name, tokens, max_query in (("mixed", 2048, 512), ("decode", sequences, 1)):
        query = empty(tokens, kv_heads * group, dim, dtype=dtype)
        launch, reduce = plan_attention(
            query,
            keys,
            keys,
            AttentionBatch(ints[0], ints[1], ints[2], max_query=max_query, max_length=8192),
            query,
            scale=0.1,
            sliding_window=1024 if rich else None,
            softcap=50.0 if rich else None,
            sinks=empty(kv_heads * group, dtype=dtype) if rich else None,
            key_scale=scale,
            value_scale=scale,
            arch=arch,
        )
        yield Case(f"attention {name}", variant, launch)
        if name == "decode":
            yield Case("attention reduce", variant, reduce)


def write_cases(arch: Architecture, dim: int, dtype: torch.dtype, cache: torch.dtype) -> Iterator[Case]:
    """The cache write alone and with rotary embedding of all or a quarter of the dimensions."""
    query, key = empty(256, 32, dim, dtype=dtype), empty(256, 8, dim, dtype=dtype)
    keys, slots = empty(1024, 8, 16, dim, dtype=cache), empty(256, dtype=torch.int64)
    scale = empty(8) if cache != dtype else None
    kind = NAMES[dtype] if cache == dtype else f"{NAMES[dtype]}/{NAMES[cache]}"
    for launch in plan_write(key, key, keys, keys, slots, scale, scale, arch=arch):
        yield Case("write", f"{kind} d={dim}", launch)
    weight = empty(dim, dtype=dtype)
    for rotated, norm in ((dim, None), (dim // 4, None), (dim, HeadNorm(weight, weight, 1e-6))):
        angles = empty(256, rotated, dtype=dtype)
        for launch in plan_rotate_and_write(
            query, key, key, angles, angles, norm, query, keys, keys, slots, scale, scale, arch=arch
        ):
            variant = f"{kind} d={dim} rotated={rotated}" + (" norm" if norm else "")
            yield Case("rotate and write", variant, launch)


def small_cases(size: int) -> Iterator[Case]:
    """RMSNorm with and without residual, and the activations."""
    x, weight = empty(256, size, dtype=torch.bfloat16), empty(size, dtype=torch.bfloat16)
    for residual in (None, x):
        for launch in plan_rms_norm(x, weight, 1e-6, residual, 0.0, x, residual):
            yield Case("rms norm", f"bf16 n={size}" + (" residual" if residual is not None else ""), launch)
    for kind in ("silu", "gelu"):
        for launch in plan_activation(empty(256, 2 * size, dtype=torch.bfloat16), kind, x):
            yield Case(kind, f"bf16 n={size}", launch)


def sampling_cases(vocabulary: int, *, quick: bool) -> Iterator[Case]:
    """Greedy; and drawing with every option, with and without penalties (quick: with)."""
    rows = 32
    floats, integers = empty(rows), empty(rows, dtype=torch.int64)
    history = empty(rows, 512, dtype=torch.int64)
    penalties = Penalties(floats, floats, floats, history, history)
    top_k = empty(rows, dtype=torch.int32)
    for label, params, logprobs in (
        ("greedy", None, None),
        ("drawn", SamplingTensors(floats, top_k, floats, floats, integers, integers), 5),
        ("penalized", SamplingTensors(floats, top_k, floats, floats, integers, integers, penalties), 5),
    ):
        if quick and label != "penalized":
            continue
        logits = empty(rows, vocabulary, dtype=torch.bfloat16)
        for launch in plan_sampling(logits, params, logprobs)[0]:
            name = launch.kernel.__name__.removesuffix("_kernel")
            yield Case(f"sampling {name}", f"bf16 v={vocabulary} {label}", launch)


def _compile(job: tuple[Architecture, bool, int]) -> Row:
    # A launch refers to kernels and does not travel between processes: only its number does.
    arch, quick, index = job
    warnings.simplefilter("ignore")
    case = list(cases(arch, quick=quick))[index]
    arguments = case.launch.arguments
    tile = f"{arguments.get('PIECE', arguments.get('CHUNK', ''))}"
    stages = f"{case.launch.num_stages}"
    if "DECODE_ROWS" in arguments:
        kinds = ("PREFILL", "DECODE") if arguments["PREFILL"] else ("DECODE",)
        tile = " ".join(f"{arguments[f'{kind}_ROWS']}x{arguments[f'{kind}_TILE']}" for kind in kinds)
        stages = " ".join(f"{arguments[f'{kind}_STAGES']}" for kind in kinds)
    compiled = compile_launch(case.launch, arch)
    # Attention's last two loops over keys, without and with masks, are those of sequences with one query.
    decode_code = tail_digest(compiled.ttgir, loops=2) if "DECODE_ROWS" in arguments else None
    compiled = replace(compiled, ttgir="")  # is not needed any more, and long
    return Row(arch, case.op, case.variant, tile, case.launch.num_warps, stages, compiled, decode_code)


def unlike_decodes(rows: Iterable[Row]) -> list[str]:
    """Variants in which a sequence with one query is computed by other code when there is a prompt in the
    batch, and so perhaps by other last bits."""
    codes: dict[str, set[str]] = {}
    for row in rows:
        if row.decode_code:
            codes.setdefault(f"{row.arch} {row.variant}", set()).add(row.decode_code)
    return [name for name, found in codes.items() if len(found) > 1]


def compile_matrix(
    architectures: Sequence[Architecture] = ARCHITECTURES,
    *,
    quick: bool = False,
    workers: int | None = None,
    only: str = "",
) -> Iterator[Row]:
    """Compile the ops whose name begins with ``only``, in processes of their own, and yield in order."""
    jobs = [
        (arch, quick, index)
        for arch in architectures
        for index, case in enumerate(cases(arch, quick=quick))
        if case.op.startswith(only)
    ]
    with ProcessPoolExecutor(workers or os.cpu_count(), mp_context=get_context("spawn")) as pool:
        yield from pool.map(_compile, jobs)


def main() -> int:
    """Print the table; the number of broken rules decides the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one configuration of each kind")
    parser.add_argument("--arch", nargs="+", choices=ARCHITECTURES, default=ARCHITECTURES)
    parser.add_argument("--workers", type=int, help="processes (default: as many as there are CPUs)")
    arguments = parser.parse_args()
    head = (
        "target",
        "kernel",
        "variant",
        "tile",
        "warps",
        "stages",
        "registers",
        "spilled B",
        "shared KiB",
        "with",
    )
    line = "{:<7} {:<18} {:<42} {:>13} {:>5} {:>6} {:>9} {:>9} {:>10}  {}"
    print(line.format(*head))
    broken = 0
    rows: list[Row] = []
    for row in compile_matrix(tuple(arguments.arch), quick=arguments.quick, workers=arguments.workers):
        rows.append(row)
        made = row.compiled
        shared = f"{made.shared_bytes / 1024:.1f}"
        notes = " ".join(sorted(made.instructions)) + (f"  <- {row.problem}" if row.problem else "")
        broken += row.problem is not None
        cells = (
            row.arch,
            row.op,
            row.variant,
            row.tile,
            row.warps,
            row.stages,
            made.registers,
            made.spilled_bytes,
        )
        print(line.format(*cells, shared, notes), flush=True)
    for name in unlike_decodes(rows):
        print(f"{name}: a prompt in the batch changes how sequences beside it are computed")
        broken += 1
    print(f"{broken} broken rules")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
