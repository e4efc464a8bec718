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
    rows = compile_matrix(("sm_80", "sm_90", "sm_100", "gfx942"), quick=True, workers=2, only={only!r})
    print(json.dumps([(r.arch, r.op, r.variant, r.problem, sorted(r.compiled.instructions)) for r in rows]))
"""


def compile_rows(tmp_path: Path, only: str) -> list[tuple[str, str, str, str | None, list[str]]]:
    """In a process of its own: in this one, kernels are defined for the interpreter."""
    script = tmp_path / "compile.py"
    script.write_text(SCRIPT.format(only=only))
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


def test_attention_fits_and_uses_tensor_cores(tmp_path: Path) -> None:
    rows = compile_rows(tmp_path, "attention")
    assert not [row for row in rows if row[3]]
    tensor_cores = {"sm_80": "mma", "sm_90": "wgmma", "sm_100": "tcgen05", "gfx942": "mfma"}
    for arch, instruction in tensor_cores.items():
        prefill = [
            row[4] for row in rows if row[0] == arch and row[1] == "attention prefill" and "bf16" in row[2]
        ]
        assert prefill
        assert all(instruction in found for found in prefill), arch
        assert [row for row in rows if row[0] == arch and row[1] == "attention decode"]


def test_sampling_does_not_spill(tmp_path: Path) -> None:
    rows = compile_rows(tmp_path, "sampling")
    assert {row[1] for row in rows} >= {
        "sampling scan",
        "sampling filter",
        "sampling draw",
        "sampling choose",
    }
    assert not [row for row in rows if row[3]]
