"""How a process that computes on a CPU deals with its threads and its memory."""

import ctypes
import os
import sys
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_KEPT: Final = 1 << 30
"""Bytes; more than intermediate results take."""


def prepare_process() -> None:
    """Settings that are to be made before torch is imported; those in the environment take precedence."""
    _let_threads_sleep()
    _keep_memory()


def _let_threads_sleep() -> None:
    # OpenMP's threads spin between operations, for which the intake, the publication of tokens and a Redis on
    # the same machine wait, and for those in turn the next operation.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _keep_memory() -> None:
    # The allocator of glibc returns large pieces to the system and gets them anew, page by page, with each
    # operation: a norm of a thousand rows takes ten times as long. Only the arena that the main thread begins
    # with can keep pieces beyond 64 MB; a worker computes in another thread.
    if not sys.platform.startswith("linux") or any(
        name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ
    ):
        return
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    if change is not None:  # musl has none
        change(_M_MMAP_THRESHOLD, _KEPT)
        change(_M_TRIM_THRESHOLD, _KEPT)
        change(_M_ARENA_MAX, 1)
