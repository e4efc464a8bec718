"""Compile a planned launch for a GPU that is not there, and read what it costs."""

import re
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from headrace.kernels.launch import FUSE_MULTIPLY_ADD, Launch

TARGETS: dict[str, GPUTarget] = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_86": GPUTarget("cuda", 86, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}

SHARED_MEMORY = {"sm_80": 163, "sm_86": 99, "sm_90": 227, "sm_100": 227, "gfx942": 64}
"""KiB of shared memory that a program of each architecture can have."""

POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.bool: "*i1",
}


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compiled kernel takes of a multiprocessor. Registers and spills are None where no tool tells."""

    registers: int | None
    spilled_bytes: int | None
    shared_bytes: int
    instructions: frozenset[str]
    """Which of ``wgmma``, ``mma``, ``tcgen05`` and ``mfma`` the code has."""
    ttgir: str = field(repr=False)
    """Triton's own code for the target."""


def compile_launch(launch: Launch, arch: str) -> Compiled:
    """Compile with what Triton would know of the launch's arguments at run time: which are None, 1, or
    multiples of 16."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for index, parameter in enumerate(launch.kernel.params):
        name, value = parameter.name, launch.arguments[parameter.name]
        fixed = not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (fixed and isinstance(value, int) and value == 1):
            signature[name], constants[name] = "constexpr", value
            continue
        if isinstance(value, torch.Tensor):
            signature[name] = POINTERS[value.dtype]
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
        if isinstance(value, torch.Tensor) or (fixed and isinstance(value, int) and value % 16 == 0):
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(launch.kernel, signature, constants, attributes)
    options = {
        "num_warps": launch.num_warps,
        "num_stages": launch.num_stages,
        "enable_fp_fusion": FUSE_MULTIPLY_ADD,
    }
    built = triton.compile(source, target=TARGETS[arch], options=options)
    assembly: str = built.asm["amdgcn"] if arch.startswith("gfx") else built.asm["ptx"]
    found = {
        "wgmma": "wgmma.mma_async" in assembly,
        "mma": "mma.sync" in assembly,
        "tcgen05": "tcgen05.mma" in assembly,
        "mfma": "v_mfma" in assembly,
    }
    if arch.startswith("gfx"):
        registers, spilled = _amd_resources(assembly)
    else:
        registers, spilled = _nvidia_resources(built.asm["cubin"])
    instructions = frozenset(name for name, present in found.items() if present)
    return Compiled(registers, spilled, built.metadata.shared, instructions, built.asm["ttgir"])


def compile_all(launches: Sequence[tuple[Launch, str]], workers: int = 1) -> list[Compiled]:
    """Compile (launch, architecture) pairs, in threads: most of the time goes into compilers outside of
    Python."""
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda pair: compile_launch(*pair), launches))


def _nvidia_resources(cubin: bytes) -> tuple[int, int]:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    match = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    if not match:
        raise RuntimeError(f"cuobjdump printed no resource usage: {text!r}")
    registers, stack, local = (int(number) for number in match.groups())
    return registers, stack + local


def _amd_resources(assembly: str) -> tuple[int, int]:
    counts = {
        name: re.search(rf"\.{name}:\s*(\d+)", assembly)
        for name in ("vgpr_count", "private_segment_fixed_size")
    }
    registers, scratch = (int(match.group(1)) if match else 0 for match in counts.values())
    return registers, scratch
