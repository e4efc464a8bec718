"""Measure other tile sizes on the GPU at hand and print the best as lines for ``kernels/configs.py``.

    python -m benchmarks.tune_kernels [--head-dim 128 ...] [--kv-heads 8] [--group 4]

Decode is timed at 64 sequences of 4,096 tokens, prefill at one prompt of 8,192, both in bfloat16 with blocks
of 16 tokens. Candidates that do not fit the GPU are left out. Both have one number of warps, since they share
a launch: the one with which neither loses much.
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Final, Literal

import torch
from torch import Tensor

from headrace.kernels import AttentionBatch
from headrace.kernels.attention.triton_attention import plan
from headrace.kernels.configs import Architecture, AttentionTiles, Tile, architecture, attention_tiles
from headrace.kernels.launch import Launch, run

Kind = Literal["prefill", "decode"]
KINDS: Final[tuple[Kind, ...]] = ("prefill", "decode")
WARPS = (4, 8)
BLOCK_SIZE = 16
ROUNDS = 20


def candidates(kind: Kind, head_dim: int) -> Iterator[Tile]:
    """Tiles worth trying: keys times dimensions is what a step loads."""
    keys = [size for size in (16, 32, 64, 128) if size * head_dim <= 1 << 14]
    if kind == "decode":
        yield from (Tile(16, *rest) for rest in product(keys, (2, 3, 4, 5)))
    else:
        yield from (Tile(*rest) for rest in product((64, 128), keys, (2, 3, 4)))


def random_batch(
    sequences: int, queries: int, length: int, device: torch.device
) -> tuple[AttentionBatch, int]:
    """Sequences of one length whose blocks lie in random order, and the number of blocks."""
    blocks = -(-length // BLOCK_SIZE)
    table = torch.randperm(sequences * blocks, device=device).int().view(sequences, blocks)
    start = torch.arange(sequences + 1, device=device, dtype=torch.int32) * queries
    lengths = torch.full((sequences,), length, device=device, dtype=torch.int32)
    batch = AttentionBatch(start, lengths, table, max_query=queries, max_length=length)
    return batch, sequences * blocks


def microseconds(launches: list[Launch], flush: Tensor) -> float:
    """Median time, with the L2 cache emptied in between."""
    run(launches)
    times: list[float] = []
    for _ in range(ROUNDS):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run(launches)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return sorted(times)[ROUNDS // 2]


def tune(
    kind: Kind,
    warps: int,
    head_dim: int,
    kv_heads: int,
    group: int,
    arch: Architecture,
    device: torch.device,
    report: Callable[[str], None],
) -> tuple[float, Tile]:
    """The fastest tile for decode or prefill with a number of warps, and its microseconds."""
    from triton.runtime.errors import OutOfResources

    sequences, queries, length = (64, 1, 4096) if kind == "decode" else (1, 8192, 8192)
    batch, blocks = random_batch(sequences, queries, length, device)
    options = {"dtype": torch.bfloat16, "device": device}
    query = torch.randn(sequences * queries, kv_heads * group, head_dim, **options)
    keys, values = (torch.randn(blocks, kv_heads, BLOCK_SIZE, head_dim, **options) for _ in range(2))
    out = torch.empty_like(query)
    flush = torch.empty(256 << 20, dtype=torch.int8, device=device)
    results: list[tuple[float, Tile]] = []
    present = replace(attention_tiles(arch, head_dim, 2), warps=warps)
    for tile in candidates(kind, head_dim):
        launches = plan(
            query,
            keys,
            values,
            batch,
            out,
            scale=head_dim**-0.5,
            sliding_window=None,
            softcap=None,
            sinks=None,
            key_scale=None,
            value_scale=None,
            arch=arch,
            tiles=replace(present, **{kind: tile}),
        )
        try:
            results.append((microseconds(launches, flush), tile))
        except OutOfResources:
            continue
        report(f"  {kind} d={head_dim} {warps} warps {tile}: {results[-1][0]:.1f} us")
    return min(results, key=lambda result: result[0])


def fastest(results: dict[tuple[Kind, int], tuple[float, Tile]]) -> AttentionTiles:
    """Of the best tiles by kind and warps, those whose times, each over the best of its kind, have the
    smallest product."""
    best = {kind: min(time for (of, _), (time, _) in results.items() if of == kind) for kind in KINDS}

    def loss(warps: int) -> float:
        return math.prod(results[kind, warps][0] / best[kind] for kind in KINDS)

    warps = min(WARPS, key=loss)
    return AttentionTiles(results["prefill", warps][1], results["decode", warps][1], warps)


def main() -> int:
    """Tune and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--head-dim", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--group", type=int, default=4, help="query heads for each KV head")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("tune_kernels: measures a GPU, and there is none here", file=sys.stderr)
        return 1
    device = torch.device("cuda")
    arch = architecture(device)
    lines: list[str] = []
    for head_dim in arguments.head_dim:
        best = fastest(
            {
                (kind, warps): tune(
                    kind, warps, head_dim, arguments.kv_heads, arguments.group, arch, device, print
                )
                for kind, warps in product(KINDS, WARPS)
            }
        )
        prefill, decode = (
            f"Tile({tile.rows}, {tile.keys}, {tile.stages})" for tile in (best.prefill, best.decode)
        )
        lines.append(f'("{arch}", {head_dim}): AttentionTiles({prefill}, {decode}, {best.warps}),')
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
