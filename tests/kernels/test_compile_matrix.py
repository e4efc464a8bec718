"""Kernels compile for GPUs that are not here: nothing spills, everything fits, tensor cores are used."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
import json
from benchmarks.compile_matrix import compile_matrix, unlike_decodes

if __name__ == "__main__":
    rows = list(compile_matrix({architectures!r}, quick=True, workers=2, only={only!r}))
    unlike = unlike_decodes(rows)
    facts = [(r.arch, r.op, r.variant, r.problem, sorted(r.compiled.instructions)) for r in rows]
    print(json.dumps([facts, unlike]))
"""


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    arch: str
    op: str
    variant: str
    problem: str | None
    instructions: list[str]


def compile_kernels(
    tmp_path: Path, only: str, architectures: list[str]
) -> tuple[list[CompiledKernel], list[str]]:
    """In a process of its own: in this one, kernels are defined for the interpreter."""
    script = tmp_path / "compile.py"
    script.write_text(SCRIPT.format(only=only, architectures=architectures))
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    facts, unlike = json.loads(done.stdout)
    return [CompiledKernel(*fact) for fact in facts], unlike


@pytest.mark.slow
def test_attention_fits_and_uses_tensor_cores(tmp_path: Path) -> None:
    """For every target, nothing spills, and a decoding sequence is computed by the very same code whether or
    not there is a prompt in the batch."""
    tensor_cores = {"sm_80": "mma", "sm_90": "wgmma", "sm_100": "tcgen05", "gfx942": "mfma"}
    kernels, unlike = compile_kernels(tmp_path, "attention", list(tensor_cores))
    assert {kernel.op for kernel in kernels} == {"attention mixed", "attention decode", "attention reduce"}
    assert [kernel for kernel in kernels if kernel.problem] == []
    assert unlike == []
    for arch, instruction in tensor_cores.items():
        mixed = [
            kernel
            for kernel in kernels
            if kernel.arch == arch and kernel.op == "attention mixed" and "bf16" in kernel.variant
        ]
        assert mixed
        assert all(instruction in kernel.instructions for kernel in mixed), arch


def test_sampling_does_not_spill(tmp_path: Path) -> None:
    kernels, _ = compile_kernels(tmp_path, "sampling", ["sm_90"])
    steps = {"count", "scan", "filter", "draw", "choose", "chunk_top", "merge_top"}
    assert {kernel.op for kernel in kernels} == {f"sampling {step}" for step in steps}
    assert [kernel for kernel in kernels if kernel.problem] == []
