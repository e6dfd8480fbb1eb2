"""Blocks of Triton's interpreter (a NumPy array with an element type), and blocks without values. Imports triton."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

from tilescope.execution.not_applicable import NotApplicable

Array = npt.NDArray[Any]

#: Types that may be, or hold, a block without values.
_BLOCKS = (TensorHandle, list, tuple)


class NeedsValues(Exception):
    """The kernel's accesses depend on values that were left out."""


class NotServed(NotApplicable):
    """An operation that the interpreter does not support, or that needs a GPU. The message is one line."""

    placed = False

    def at(self, where: str) -> NotServed:
        """The same error with the place in its message, unless it has one."""
        if self.placed:
            return self
        told = NotServed(f"{where}: {self}")
        told.placed = True
        return told


class Opaque(TensorHandle):  # type: ignore[misc]
    """A block with a known shape and type but no values. Its data is one element, broadcast."""

    def clone(self) -> Opaque:
        return Opaque(self.data, self.dtype)


def opaque(sample: Array, shape: tuple[int, ...], dtype: Any) -> Opaque:
    """A block without values, with data of the type of ``sample``."""
    return Opaque(_everywhere(np.asarray(sample).dtype, tuple(shape)), dtype)


@functools.lru_cache(maxsize=256)
def _everywhere(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(np.zeros((), dtype), shape)


def unknown(kind: Any, shape: tuple[int, ...]) -> Opaque:
    """A block without values of Triton's element type ``kind``."""
    return Opaque(_everywhere(np.dtype(interpreter._get_np_dtype(kind.scalar)), tuple(shape)), kind.scalar)


def is_opaque(value: Any) -> bool:
    """Whether a block, or any of several, has no values."""
    if isinstance(value, (list, tuple)):
        # Called for each operation: a loop takes half the time of ``any``.
        for item in value:  # noqa: SIM110
            if isinstance(item, _BLOCKS) and is_opaque(item):
                return True
        return False
    return isinstance(value, Opaque)


def first(handle: Any) -> Any:
    """The handle's first element, with the same number of dimensions."""
    return TensorHandle(handle.data[(slice(0, 1),) * handle.data.ndim], handle.dtype)


def as_tensor(handle: Any, kind: Any, shape: tuple[int, ...]) -> Any:
    """The handle as a tensor of the language: a block of ``shape``, or a scalar where that is empty."""
    return tl.core.tensor(handle, tl.block_type(kind, list(shape)) if shape else kind)


def plain(value: Any) -> Any:
    """The value of a ``tl.constexpr``; any other value unchanged."""
    return value.value if isinstance(value, tl.constexpr) else value
