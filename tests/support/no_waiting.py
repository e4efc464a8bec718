"""Finds, without a GPU, what would make the host wait for one."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_WAITS = {
    Tensor.tolist,
    Tensor.item,
    Tensor.__bool__,
    Tensor.__int__,
    Tensor.__float__,
    Tensor.__index__,
    Tensor.__contains__,
    Tensor.cpu,
    Tensor.nonzero,
    Tensor.masked_select,
    Tensor.unique,
    Tensor.equal,
    torch.nonzero,
    torch.masked_select,
    torch.unique,
    torch.equal,
    torch.allclose,
    torch.bincount,
    # From a list, through memory that is not pinned.
    torch.tensor,
    torch.as_tensor,
}


class WaitedError(AssertionError):
    """An operation that needs a value, or a size, that only the device has."""


class NoWaiting(TorchFunctionMode):
    """While active, operations that would synchronize with a GPU raise, but for those in ``allowing``."""

    def __init__(self) -> None:
        super().__init__()
        self._allowed = False

    @contextmanager
    def allowing(self) -> Iterator[None]:
        before, self._allowed = self._allowed, True
        try:
            yield
        finally:
            self._allowed = before

    def allowed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, free to wait: of its two implementations, this is not the GPU's."""

        def call(*arguments: Any, **named: Any) -> Any:
            with self.allowing():
                return function(*arguments, **named)

        return call

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if not self._allowed and (func in _WAITS or _selects_by_mask(func, args)):
            raise WaitedError(f"{getattr(func, '__name__', func)} waits for the device")
        return func(*args, **(kwargs or {}))


def _selects_by_mask(func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Indexing by booleans counts them, for the size of the result."""
    if func is torch.where and len(args) == 1:
        return True
    if func not in (Tensor.__getitem__, Tensor.__setitem__):
        return False
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    return any(isinstance(part, Tensor) and part.dtype == torch.bool and part.dim() for part in index)
