"""Device errors of torch and Triton, translated to the engine's."""

import torch

from ...engine.errors import DeviceFailure, OutOfMemory

_SIGNS = ("CUDA error", "HIP error", "Triton Error")
"""Not every library raises torch's own classes: cuBLAS and Triton say it in words."""

_SHORTAGES = ("out of memory", "ALLOC_FAILED")


def in_engine_words(error: RuntimeError) -> OutOfMemory | DeviceFailure | None:
    """What ``error`` says of the device; None if it is about something else."""
    message = str(error).partition("\n")[0]
    if isinstance(error, torch.OutOfMemoryError):
        return OutOfMemory(message)
    if isinstance(error, torch.AcceleratorError) or any(sign in message for sign in _SIGNS):
        if any(shortage in message for shortage in _SHORTAGES):
            return OutOfMemory(message)
        return DeviceFailure(f"the device has failed and this process cannot use it any more: {message}")
    return None
