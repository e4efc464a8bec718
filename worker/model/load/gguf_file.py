"""GGUF reader, version 3: metadata and dequantized tensors.

The gguf package's own reader makes an array object for each of a vocabulary's strings, which takes half a
minute where this takes one second; the arithmetic of the quantization formats is that package's.
"""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, dequantize, quant_shape_to_byte_shape
from numpy.typing import NDArray

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class _TensorEntry:
    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int


class GGUFFile:
    """An open GGUF file; ``metadata`` by key, tensors by ``tensors()``.

    Raises:
        ValueError: not a GGUF file of version 3.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = len(_MAGIC)
        if self._data[: len(_MAGIC)] != _MAGIC or self._scalar("I") != 3:
            raise ValueError(f"{path}: not a GGUF file of version 3")
        num_tensors, num_fields = self._scalar("Q"), self._scalar("Q")
        self.metadata: dict[str, Any] = {
            self._string(): self._value(self._scalar("I")) for _ in range(num_fields)
        }
        self._entries = [self._entry() for _ in range(num_tensors)]
        alignment: int = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        self._start = -(-self._at // alignment) * alignment

    def __len__(self) -> int:
        """Number of tensors."""
        return len(self._entries)

    def tensors(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Name and values of each tensor, its outermost dimension first."""
        for entry in self._entries:
            shape = (
                quant_shape_to_byte_shape(entry.shape, entry.kind) if _is_packed(entry.kind) else entry.shape
            )
            dtype = np.dtype(
                np.uint8 if _is_packed(entry.kind) else entry.kind.name.lower().replace("f", "float")
            )
            count = int(np.prod(shape))
            raw = np.frombuffer(self._data, dtype, count, self._start + entry.offset).reshape(shape).copy()
            yield entry.name, dequantize(raw, entry.kind)

    def close(self) -> None:
        self._data.close()

    def _scalar(self, kind: str) -> Any:
        value = struct.unpack_from(f"<{kind}", self._data, self._at)[0]
        self._at += struct.calcsize(f"<{kind}")
        return value

    def _string(self) -> str:
        length: int = self._scalar("Q")
        self._at += length
        return self._data[self._at - length : self._at].decode()

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(_SCALARS[kind])
        element, length = self._scalar("I"), self._scalar("Q")
        if element in _SCALARS:
            layout = f"<{length}{_SCALARS[element]}"
            self._at += struct.calcsize(layout)
            return list(struct.unpack_from(layout, self._data, self._at - struct.calcsize(layout)))
        return [self._value(element) for _ in range(length)]

    def _entry(self) -> _TensorEntry:
        name = self._string()
        dimensions = [self._scalar("Q") for _ in range(self._scalar("I"))]
        return _TensorEntry(
            name, tuple(reversed(dimensions)), GGMLQuantizationType(self._scalar("I")), self._scalar("Q")
        )


def _is_packed(kind: GGMLQuantizationType) -> bool:
    return kind not in (GGMLQuantizationType.F32, GGMLQuantizationType.F16)
