"""What a GPU cannot beat: bytes, FLOPs and the floor in microseconds of each op and of a whole decode step.

    python -m benchmarks.roofline [--json]

An op's floor is the larger of its bytes over the copy rate and its FLOPs over the matmul rate; a step's is
the sum, since its ops depend on each other. Weights, activations and cache are bfloat16. Bytes are what must
move if each op reads its inputs and writes its outputs once. A prefill row is one prompt with nothing before
it.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

BYTES = 2


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU's rates: bytes per second of a copy (read and write together), FLOPs per second of a
    matmul."""

    name: str
    bandwidth: float
    flops: float


H200 = Device("H200", 4.3e12, 790e12)
# Not measured: 86 % of what the data sheet of the 80 GB card promises, as the H200 gives.
A100 = Device("A100", 1.75e12, 270e12)
DEVICES = (H200, A100)


@dataclass(frozen=True, slots=True)
class Model:
    """The sizes of a decoder that its step's cost depends on."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    windowed_layers: int = 0
    window: int = 0


MODELS = (
    Model("Llama-3.1-8B", 32, 4096, 32, 8, 128, 14336, 128_256),
    Model("Qwen3-0.6B", 28, 1024, 16, 8, 128, 3072, 151_936),
    Model("Gemma-3-270M", 18, 640, 4, 1, 256, 2048, 262_144, windowed_layers=15, window=512),
)
BATCHES = (1, 8, 64, 256)
CONTEXTS = (1024, 4096, 32768)
PROMPTS = (512, 8192)


@dataclass(frozen=True, slots=True)
class Cost:
    """One op in all layers of a step: bytes moved, and floating point operations (a multiply-add is two)."""

    op: str
    bytes: float
    flops: float

    def floor(self, device: Device) -> float:
        """Microseconds."""
        return 1e6 * max(self.bytes / device.bandwidth, self.flops / device.flops)


def linear(op: str, rows: int, inputs: int, outputs: int, times: int) -> Cost:
    """``times`` matrix products of [rows, inputs] with a weight [inputs, outputs]."""
    moved = BYTES * (inputs * outputs + rows * (inputs + outputs))
    return Cost(op, times * moved, times * 2.0 * rows * inputs * outputs)


def elementwise(op: str, elements: float, times: int) -> Cost:
    """``elements`` values read or written."""
    return Cost(op, times * BYTES * elements, times * elements)


def attention(model: Model, sequences: int, queries: int, length: int, cache_bytes: int = BYTES) -> Cost:
    """Queries that are the last of each sequence's ``length`` tokens, in all layers."""
    moved = flops = 0.0
    for layers, window in (
        (model.windowed_layers, model.window),
        (model.layers - model.windowed_layers, length),
    ):
        if not layers:
            continue
        # Keys seen, summed over the queries, and how many different ones that are.
        seen = sum(min(length - queries + i + 1, window) for i in range(queries))
        read = min(length, window + queries - 1)
        cache = 2 * read * model.kv_heads * model.head_dim
        rows = 2 * queries * model.heads * model.head_dim
        moved += layers * sequences * (cache_bytes * cache + BYTES * rows)
        flops += layers * sequences * 4.0 * seen * model.heads * model.head_dim
    return Cost("attention", moved, flops)


def step(model: Model, sequences: int, queries: int, length: int, *, cache_bytes: int = BYTES) -> list[Cost]:
    """All ops of an iteration in which each sequence, now ``length`` tokens long, has ``queries`` of them
    computed; a cached number takes ``cache_bytes``."""
    rows, layers = sequences * queries, model.layers
    attended = model.heads * model.head_dim
    cached = model.kv_heads * model.head_dim
    return [
        elementwise("embedding", 2 * rows * model.hidden, 1),
        elementwise("rms norm + residual", 4 * rows * model.hidden, 2 * layers),
        linear("qkv projection", rows, model.hidden, attended + 2 * cached, layers),
        elementwise("rotary + K/V write", 2 * rows * (attended + 2 * cached), layers),
        attention(model, sequences, queries, length, cache_bytes),
        linear("output projection", rows, attended, model.hidden, layers),
        linear("gate/up projection", rows, model.hidden, 2 * model.intermediate, layers),
        elementwise("activation", 3 * rows * model.intermediate, layers),
        linear("down projection", rows, model.intermediate, model.hidden, layers),
        linear("logits", sequences, model.hidden, model.vocabulary, 1),
        elementwise("sampling", sequences * model.vocabulary, 1),
    ]


def cases() -> Iterator[tuple[str, int, int, int]]:
    """(label, sequences, queries, length): decode at several batch sizes and contexts, then prefill."""
    for context in CONTEXTS:
        for batch in BATCHES:
            yield f"decode {batch} x {context}", batch, 1, context
    for prompt in PROMPTS:
        yield f"prefill {prompt}", 1, prompt, prompt


def floors(model: Model, device: Device) -> dict[str, float]:
    """Microseconds of a whole step by case label."""
    return {label: sum(cost.floor(device) for cost in step(model, *sizes)) for label, *sizes in cases()}


def table(model: Model) -> Iterator[str]:
    """Lines: ops of two telling decode steps, then whole steps."""
    rates = "".join(f"{device.name + ' us':>12}" for device in DEVICES)
    yield f"{model.name}, every op of a decode step (sum over {model.layers} layers)"
    yield f"  {'case':<18}{'op':<22}{'MB':>12}{'GFLOP':>12}{rates}"
    for batch, context in ((1, 1024), (64, 4096)):
        for cost in step(model, batch, 1, context):
            times = "".join(f"{cost.floor(device):>12.1f}" for device in DEVICES)
            label = f"decode {batch} x {context}"
            yield f"  {label:<18}{cost.op:<22}{cost.bytes / 1e6:>12.2f}{cost.flops / 1e9:>12.3f}{times}"
    yield f"{model.name}, whole steps"
    yield f"  {'case':<18}{'attention us, H200':<22}{'MB':>12}{'GFLOP':>12}{rates}{'tok/s, H200':>14}"
    for label, sequences, queries, length in cases():
        costs = step(model, sequences, queries, length)
        moved, flops = sum(cost.bytes for cost in costs), sum(cost.flops for cost in costs)
        totals = [sum(cost.floor(device) for cost in costs) for device in DEVICES]
        times = "".join(f"{total:>12.1f}" for total in totals)
        own = f"{attention(model, sequences, queries, length).floor(H200):.1f}"
        speed = sequences * queries / totals[0] * 1e6
        yield f"  {label:<18}{own:<22}{moved / 1e6:>12.1f}{flops / 1e9:>12.1f}{times}{speed:>14.0f}"


def main() -> int:
    """Print the tables, or everything as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    if parser.parse_args().json:
        rows = [
            {"model": model.name, "case": label, **asdict(cost)}
            | {f"{device.name}_us": cost.floor(device) for device in DEVICES}
            for model in MODELS
            for label, *sizes in cases()
            for cost in step(model, *sizes)
        ]
        print(json.dumps(rows, indent=1))
        return 0
    for device in DEVICES:
        print(f"{device.name}: {device.bandwidth / 1e12:g} TB/s copy, {device.flops / 1e12:g} TFLOP/s bf16")
    for model in MODELS:
        print()
        print("\n".join(table(model)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
