"""Kernels compile for GPUs that are not here: nothing spills, everything fits, tensor cores are used."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

SCRIPT = """
import json
from benchmarks.compile_matrix import compile_matrix

if __name__ == "__main__":
    rows = compile_matrix({architectures!r}, quick=True, workers=2, only={only!r})
    print(json.dumps([(r.arch, r.op, r.variant, r.problem, sorted(r.compiled.instructions)) for r in rows]))
"""


def compile_rows(
    tmp_path: Path, only: str, architectures: list[str]
) -> list[tuple[str, str, str, str | None, list[str]]]:
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
    return json.loads(done.stdout)


def test_attention_fits_and_does_not_spill(tmp_path: Path) -> None:
    rows = compile_rows(tmp_path, "attention", ["sm_80", "sm_90"])
    assert {row[1] for row in rows} == {"attention prefill", "attention decode", "attention reduce"}
    assert not [row for row in rows if row[3]]


def test_prefill_uses_tensor_cores(tmp_path: Path) -> None:
    tensor_cores = {"sm_80": "mma", "sm_90": "wgmma", "sm_100": "tcgen05", "gfx942": "mfma"}
    rows = compile_rows(tmp_path, "attention prefill", list(tensor_cores))
    for arch, instruction in tensor_cores.items():
        found = [row[4] for row in rows if row[0] == arch and "bf16" in row[2]]
        assert found
        assert all(instruction in instructions for instructions in found), arch
    assert not [row for row in rows if row[3]]


def test_sampling_does_not_spill(tmp_path: Path) -> None:
    rows = compile_rows(tmp_path, "sampling", ["sm_90"])
    steps = {"count", "scan", "filter", "draw", "choose", "chunk_top", "merge_top"}
    assert {row[1] for row in rows} == {f"sampling {step}" for step in steps}
    assert not [row for row in rows if row[3]]
