"""How long work on a device takes, and the rates that it is compared with."""

import time
from collections.abc import Callable
from functools import cache
from statistics import median

import torch
from torch import Tensor

GIB = 2**30
_AT_LEAST = 3e-3


def seconds(work: Callable[[], object], device: torch.device, *, repeats: int = 7) -> float:
    """Median seconds of one ``work``.

    On a GPU, by its own clock and from a CUDA graph of as many runs as take some milliseconds: the time that
    the host takes to launch kernels does not count.
    """
    if device.type == "cpu":
        work()
        return median(_on_host(work) for _ in range(min(repeats, 3)))
    # The first run compiles kernels.
    _between_events(work)
    times = max(1, min(100, int(_AT_LEAST / _between_events(work))))
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        work()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(times):
            work()
    graph.replay()
    return median(_between_events(graph.replay) for _ in range(repeats)) / times


def _on_host(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _between_events(work: Callable[[], object]) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    work()
    end.record()
    end.synchronize()
    return max(1e-7, begin.elapsed_time(end) / 1e3)


@cache
def copy_rate(device: torch.device) -> float:
    """Bytes per second, read and written, of a copy that no cache holds."""
    size = 4 * GIB if device.type == "cuda" else GIB // 16
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds(lambda: target.copy_(source), device)


@cache
def matmul_rate(device: torch.device) -> float:
    """Floating point operations per second of a large bfloat16 matrix product."""
    size = 8192 if device.type == "cuda" else 256
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * size**3 / seconds(lambda: torch.mm(a, b, out=out), device)


def random_tensor(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Normal numbers; made piece by piece, since a large cache in float32 would be twice as large."""
    result = torch.empty(*shape, dtype=dtype, device=device)
    return result.normal_()
