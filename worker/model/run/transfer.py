"""Asynchronous transfer of a batch's small arrays to the device and of sampled tokens back."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ....kernels import Sampled

_ALIGNMENT = 16


def upload(arrays: Sequence[NDArray[np.generic]], device: torch.device) -> list[Tensor]:
    """Tensors on ``device`` equal to ``arrays``. Many arrays are one asynchronous copy from pinned memory.

    On the CPU the tensors share the arrays' memory.
    """
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    # The allocator gives a pinned buffer out again only after the copies recorded on it have run.
    packed = pack(arrays, pin_memory=True).to(device, non_blocking=True)
    return unpack(packed, arrays)


def pack(arrays: Sequence[NDArray[np.generic]], *, pin_memory: bool) -> Tensor:
    """All of ``arrays`` in one buffer of bytes, each at a multiple of 16."""
    packed = torch.empty(packed_bytes(arrays), dtype=torch.uint8, pin_memory=pin_memory)
    buffer = packed.numpy()
    offset = 0
    for array in arrays:
        buffer[offset : offset + array.nbytes].view(array.dtype)[:] = array.ravel()
        offset += _padded(array.nbytes)
    return packed


def packed_bytes(arrays: Sequence[NDArray[np.generic]]) -> int:
    """Size of the buffer that ``pack`` makes."""
    return sum(_padded(array.nbytes) for array in arrays)


def unpack(packed: Tensor, like: Sequence[NDArray[np.generic]]) -> list[Tensor]:
    """Views into a buffer that begins with what ``pack`` makes, in the shapes and dtypes of ``like``."""
    tensors: list[Tensor] = []
    offset = 0
    for array in like:
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        tensors.append(packed[offset : offset + array.nbytes].view(dtype).view(array.shape))
        offset += _padded(array.nbytes)
    return tensors


class Download:
    """Sampled tokens on their way to the host; ``wait`` gives them once they are there.

    What they were copied from may be overwritten by later work on the device.
    """

    def __init__(self, sampled: Sampled) -> None:
        self._event: torch.cuda.Event | None = None
        self._sampled = Sampled(
            _start_copy(sampled.tokens),
            None if sampled.logprobs is None else _start_copy(sampled.logprobs),
            None if sampled.top_tokens is None else _start_copy(sampled.top_tokens),
            None if sampled.top_logprobs is None else _start_copy(sampled.top_logprobs),
        )
        if sampled.tokens.is_cuda:
            self._event = torch.cuda.Event()
            self._event.record()

    def wait(self) -> Sampled:
        if self._event is not None:
            self._event.synchronize()
        return self._sampled


def _start_copy(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return host.copy_(tensor, non_blocking=True)


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
