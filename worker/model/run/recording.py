"""Recorder of device work for replay: CUDA graphs, behind a protocol that tests implement, too."""

from collections.abc import Callable
from typing import Protocol

import torch


class Recorder(Protocol):
    """Records work that reads and writes tensors whose places in memory stay."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Run ``work`` at least once; what is returned repeats what it did on the device.

        Raises:
            RuntimeError: ``work`` does something that cannot be recorded, such as waiting for the device.
        """
        ...


class CudaGraphs:
    """Records CUDA graphs that share one pool of memory, so that all of them take what the largest takes.

    Two of them must therefore not run at the same time, and what one leaves in tensors that it allocated is
    lost when another runs.
    """

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        # What is done once only, such as compiling kernels and choosing algorithms, must not be recorded.
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            work()
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on using the device.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            work()
        return graph.replay
