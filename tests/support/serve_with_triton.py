"""Serves cases with the Triton kernels in Triton's interpreter, in a process of its own.

Triton reads TRITON_INTERPRET when a kernel is defined, so the variable must be there before anything is
imported. Jobs go in and outputs come out as JSON.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from fake_recorder import FakeRecorder
from parity import Case, serve

from headrace.worker.model.load.loader import load_model
from headrace.worker.model.passes.fusion import fuse_layers


def outputs_with_triton(jobs: list[dict[str, Any]]) -> list[list[list[int]]]:
    """The output tokens of each job's prompts.

    A job has ``folder`` of a model, ``prompts``, ``max_tokens``, ``block_size``, ``as_on_gpu``: with fused
    layers, and decode steps recorded and padded; and ``float8``, if so is the cache.
    """
    process = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(jobs),
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout.splitlines()[-1])


def _run(job: dict[str, Any]) -> list[list[int]]:
    cases = [Case(prompt, []) for prompt in job["prompts"]]
    loaded = load_model(job["folder"], dtype="float32", passes=not job["as_on_gpu"])
    recorder = None
    if job["as_on_gpu"]:
        fuse_layers(loaded.model, "triton")
        recorder = FakeRecorder()
    outcome = serve(
        loaded,
        cases,
        max_tokens=job["max_tokens"],
        block_size=job["block_size"],
        max_batched_tokens=7,
        stagger=2,
        implementation="triton",
        overlap=job["as_on_gpu"],
        max_sequences=4,
        recorder=recorder,
        kv_dtype=torch.float8_e4m3fn if job.get("float8") else None,
    )
    return outcome.outputs


if __name__ == "__main__":
    print(json.dumps([_run(job) for job in json.load(sys.stdin)]))
