"""Everything about a GPU that only a GPU can tell, in under five minutes: one table, and the same as JSON.

    python -m benchmarks.gpu_check [--json PATH] [--part NAME ...] [--device cpu --quick]

Needs torch, triton, transformers and numpy, no server, no download and no installation. Each part is a
process of its own with a limit of time, so that what breaks one, be it the device's context, leaves the
others alone. Ends with status 1 if a part failed or a target was missed on a GPU.
"""

import argparse
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .checkout import ROOT, make_importable
from .gpu_report import Row, failure, table


@dataclass(frozen=True, slots=True)
class Part:
    """A group of checks: a generator of rows in a module, and the seconds it may take."""

    module: str
    function: str
    limit: float


PARTS = {
    "numerics": Part("gpu_numerics", "check_numerics", 65),
    "decode": Part("gpu_attention", "check_decode", 45),
    "prefill": Part("gpu_attention", "check_prefill", 30),
    "tokens": Part("gpu_tokens", "check_tokens", 35),
    "small": Part("gpu_engine", "check_small_model", 45),
    "large": Part("gpu_engine", "check_large_model", 75),
}


def run_part(name: str, device: str, *, quick: bool) -> None:
    """Print each row of a part as a line of JSON, as it comes."""
    import torch

    part = PARTS[name]
    case = "start"
    try:
        module = importlib.import_module(f"benchmarks.{part.module}")
        check: Callable[..., Iterator[Row]] = getattr(module, part.function)
        torch.manual_seed(0)
        for row in check(torch.device(device), quick=quick):
            case = f"after {row.case}"
            print(json.dumps(asdict(row)), flush=True)
    except Exception as error:
        print(json.dumps(asdict(failure(case, f"{type(error).__name__}: {error}"))), flush=True)
        raise


def collect(name: str, device: str, *, quick: bool, limit: float) -> tuple[float, list[Row]]:
    """Run a part in a process of its own: the seconds it took, and its rows."""
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--run", name, "--device", device]
    command += ["--quick"] if quick else []
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        output, errors = process.communicate(timeout=limit)
        ended = None
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        ended = failure("the rest", f"stopped after its {limit:.0f} s")
    rows = [Row(**json.loads(line)) for line in output.splitlines() if line.startswith("{")]
    if ended is None and process.returncode and not any(row.verdict == "FAILED" for row in rows):
        ended = failure("the rest", f"status {process.returncode}: {errors[-300:]}")
    if ended is not None:
        rows.append(ended)
    if any(row.verdict == "FAILED" for row in rows):
        print(errors[-3000:], file=sys.stderr)
    return time.monotonic() - began, rows


def describe(device: str) -> dict[str, str]:
    """The device and the versions that the figures are of."""
    found = {name: version(name) for name in ("torch", "triton", "transformers")} | {"device": device}
    if device == "cuda":
        import torch

        found["device"] = torch.cuda.get_device_name()
    return found


def main() -> int:
    """Run the parts one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true", help="small shapes; for a CPU")
    parser.add_argument("--json", type=Path, default=Path("gpu_check.json"), help="where the figures go")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="only this one; repeatable")
    parser.add_argument("--run", choices=list(PARTS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    make_importable()
    if options.run:
        run_part(options.run, options.device, quick=options.quick)
        return 0
    began = time.monotonic()
    about = describe(options.device)
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    results: list[tuple[str, float, list[Row]]] = []
    for name in options.part or PARTS:
        # A CPU is many times slower; its figures mean nothing, and it has no machine time to save.
        limit = PARTS[name].limit if options.device == "cuda" else 600.0
        took, rows = collect(name, options.device, quick=options.quick, limit=limit)
        print(f"{name}: {len(rows)} checks in {took:.0f} s", file=sys.stderr)
        results.append((name, took, rows))
        _write(options.json, about, results)
    print(table(results))
    verdicts = [row.verdict for _, _, rows in results for row in rows]
    counts = ", ".join(f"{verdicts.count(kind)} {kind}" for kind in ("ok", "MISSED", "FAILED"))
    print(f"{counts}, {time.monotonic() - began:.0f} s")
    return int("FAILED" in verdicts or (options.device == "cuda" and "MISSED" in verdicts))


def _write(path: Path, about: dict[str, str], results: list[tuple[str, float, list[Row]]]) -> None:
    rows: list[dict[str, Any]] = [row.to_json(part) for part, _, rows in results for row in rows]
    seconds = {part: round(took, 1) for part, took, _ in results}
    path.write_text(json.dumps({"about": about, "seconds": seconds, "rows": rows}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
