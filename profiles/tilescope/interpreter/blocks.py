"""Blocks of Triton's interpreter: a numpy array with an element type, and blocks whose values are left out.

Imports triton.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

Array = npt.NDArray[Any]


class NeedsValues(Exception):
    """The kernel's accesses depend on floating-point values, and those were left out."""


class NotServed(Exception):
    """An operation that the interpreter does not support, or that has no meaning off the GPU. One line."""

    placed = False

    def at(self, where: str) -> NotServed:
        """The same, with where it is, unless it says that."""
        if self.placed:
            return self
        told = NotServed(f"{where}: {self}")
        told.placed = True
        return told


class Opaque(TensorHandle):  # type: ignore[misc]
    """A block whose shape and type are known and whose values are not. Its data is one element, seen everywhere."""

    def clone(self) -> Opaque:
        return Opaque(self.data, self.dtype)


def opaque(sample: Array, shape: tuple[int, ...], dtype: Any) -> Opaque:
    """A block without values, its data of the type that ``sample`` has."""
    return Opaque(np.broadcast_to(np.asarray(sample).reshape(-1)[:1].reshape(()), shape), dtype)


def unknown(kind: Any, shape: tuple[int, ...]) -> Opaque:
    """A block without values of Triton's element type ``kind``."""
    return opaque(np.zeros(1, interpreter._get_np_dtype(kind.scalar)), shape, kind.scalar)


def is_opaque(value: Any) -> bool:
    """Whether a block, or any of several, has no values."""
    if isinstance(value, (list, tuple)):
        return any(is_opaque(item) for item in value)
    return isinstance(value, Opaque)


def first(handle: Any) -> Any:
    """The same handle with one element in each dimension."""
    return TensorHandle(handle.data[(slice(0, 1),) * handle.data.ndim], handle.dtype)


def as_tensor(handle: Any, kind: Any, shape: tuple[int, ...]) -> Any:
    """The handle as the language has it: a block of ``shape``, or a scalar where that is empty."""
    return tl.core.tensor(handle, tl.block_type(kind, list(shape)) if shape else kind)


def plain(value: Any) -> Any:
    """The value of a constant, anything else as it is."""
    return value.value if isinstance(value, tl.constexpr) else value
