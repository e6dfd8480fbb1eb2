"""Reductions and scans of Triton's language in NumPy, on whole blocks for any combining function.

Triton's interpreter does them outside of its builder, and element by element for a user's function. Imports triton.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from tilescope.interpreter import narrow, undefined
from tilescope.interpreter.blocks import Array, as_tensor, first, is_opaque, opaque, plain
from tilescope.interpreter.meter import Counting

_UFUNCS = {
    "_sum_combine": np.add,
    "_prod_combine": np.multiply,
    "_elementwise_max": np.fmax,
    "_elementwise_min": np.fmin,
}
_PICKS = {"_argmax_combine_tie_break_left": np.argmax, "_argmin_combine_tie_break_left": np.argmin}


class Reductions:
    """``tl.reduce`` and ``tl.associative_scan``, which every other reduction and scan is made of."""

    def __init__(self, counting: Counting) -> None:
        self.counting = counting
        #: Flops of one combination, by function and element types.
        self._flops: dict[Any, int] = {}

    def reduce(self, input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False, **_: Any) -> Any:
        """Combines the elements along ``axis`` (None: all). Parameters are named as in the language."""
        block, combine = input, combine_fn
        parts, axis = _parts(block), plain(axis)
        shape = parts[0].handle.data.shape
        along = range(len(shape)) if axis is None else (_checked(axis, shape),)
        kept = tuple(1 if i in along else n for i, n in enumerate(shape) if plain(keep_dims) or i not in along)
        self._count(parts, combine, parts[0].handle.data.size - int(np.prod(kept)))
        if is_opaque([part.handle for part in parts]):
            return _like(block, [_unknown(part, kept) for part in parts])
        self.counting.spend(parts[0].handle.data.size)
        moved = [_last(part.handle.data, along) for part in parts]
        results = self._reduced(parts, moved, combine)
        made = [_tensor(r.reshape(kept or (1,)), p, kept) for r, p in zip(results, parts, strict=True)]
        for part, result in zip(parts, made, strict=True):
            undefined.reduced(part.handle, result.handle, tuple(along))
            if self.counting.not_finite is not None:
                self.counting.not_finite.computed(_called(combine), [part.handle], result.handle)
        return _like(block, made)

    def scan(self, input: Any, axis: Any, combine_fn: Any, reverse: Any = False, **_: Any) -> Any:
        """Combines each element with all before it along ``axis``; with ``reverse``, with all after it."""
        block, combine = input, combine_fn
        parts = _parts(block)
        shape = parts[0].handle.data.shape
        along = _checked(plain(axis), shape)
        size = parts[0].handle.data.size
        self._count(parts, combine, size - size // shape[along])
        if is_opaque([part.handle for part in parts]):
            return _like(block, [_unknown(part, shape) for part in parts])
        self.counting.spend(size)
        step = -1 if plain(reverse) else 1
        moved = [np.moveaxis(part.handle.data, along, -1)[..., ::step] for part in parts]
        results = [np.moveaxis(found[..., ::step], -1, along) for found in self._scanned(parts, moved, combine)]
        return _like(block, [_tensor(result, part, shape) for result, part in zip(results, parts, strict=True)])

    def _reduced(self, parts: tuple[Any, ...], data: list[Array], combine: Any) -> list[Array]:
        """Reduces along the last axis, which is removed."""
        name = _name(combine)
        if name in _UFUNCS and len(parts) == 1:
            kind = parts[0].dtype.name
            return [_computed(data[0], kind, lambda x: _UFUNCS[name].reduce(x, axis=-1, dtype=x.dtype))]
        if name in _PICKS and len(parts) == 2 and parts[0].dtype.name not in narrow.FORMATS:
            at = _PICKS[name](data[0], axis=-1)[..., None]
            return [np.take_along_axis(part, at, -1)[..., 0] for part in data]
        while data[0].shape[-1] > 1:
            data = self._combined(parts, [x[..., 0::2] for x in data], [x[..., 1::2] for x in data], combine)
        return [x[..., 0] for x in data]

    def _scanned(self, parts: tuple[Any, ...], data: list[Array], combine: Any) -> list[Array]:
        """Scans along the last axis. At each step, elements combine with those a power of two before them."""
        name = _name(combine)
        if name in _UFUNCS and len(parts) == 1:
            kind = parts[0].dtype.name
            return [_computed(data[0], kind, lambda x: _UFUNCS[name].accumulate(x, axis=-1, dtype=x.dtype))]
        places, distance = np.arange(data[0].shape[-1]), 1
        while distance < places.size:
            # Elements that np.roll brings from the end are not used.
            combined = self._combined(parts, [np.roll(x, distance, -1) for x in data], data, combine)
            data = [np.where(places >= distance, new, old) for new, old in zip(combined, data, strict=True)]
            distance *= 2
        return data

    def _combined(self, parts: tuple[Any, ...], left: list[Array], right: list[Array], combine: Any) -> list[Array]:
        counted, self.counting.meter = self.counting.meter, None
        try:
            operands = [_tensor(x, p, x.shape) for side in (left, right) for x, p in zip(side, parts, strict=True)]
            results = _parts(combine(*operands))
        finally:
            self.counting.meter = counted
        return [_data(r, x) for r, x in zip(results, left, strict=True)]

    def _count(self, parts: tuple[Any, ...], combine: Any, combinations: int) -> None:
        self.counting.program.stores.clear()
        if self.counting.meter is None:
            return
        # Not the JITFunction itself: its hash reads the sources of all its callees.
        key = (getattr(combine, "fn", combine), tuple(part.dtype.name for part in parts))
        if key not in self._flops:
            counts = self.counting.meter.counts
            before = counts["flops"]
            one = [as_tensor(first(part.handle), part.dtype, (1,) * part.handle.data.ndim) for part in parts]
            combine(*one, *one)
            self._flops[key] = counts["flops"] - before
            counts["flops"] = before
        self.counting.flops(self._flops[key] * combinations)


def _parts(block: Any) -> tuple[Any, ...]:
    return tuple(block) if isinstance(block, (tuple, tl.tuple)) else (block,)


def _like(block: Any, results: list[Any]) -> Any:
    return tuple(results) if isinstance(block, (tuple, tl.tuple)) else results[0]


def _checked(axis: int, shape: tuple[int, ...]) -> int:
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"axis {axis} is not one of a block of shape {shape}")
    return axis % len(shape)


def _last(data: Array, along: Any) -> Array:
    """The dimensions ``along`` as one, at the end."""
    if len(along) == 1:
        return np.moveaxis(data, along[0], -1)
    return data.reshape(-1)


def _name(combine: Any) -> str:
    function = getattr(combine, "fn", combine)
    return function.__name__ if function.__module__ == tl.standard.__name__ else ""


def _called(combine: Any) -> str:
    """What a message calls the reduction."""
    return {"_sum_combine": "tl.sum", "_elementwise_max": "tl.max", "_elementwise_min": "tl.min"}.get(
        _name(combine), "tl.reduce"
    )


def _computed(data: Array, kind: str, compute: Callable[[Array], Array]) -> Array:
    """Computes in fp32 and rounds once, where NumPy lacks the format."""
    if kind not in narrow.FORMATS:
        return compute(data)
    return narrow.encode(compute(narrow.decode(data, kind)), kind)


def _data(result: Any, like: Array) -> Array:
    data = result.handle.data if isinstance(result, tl.tensor) else np.asarray(result)
    whole: Array = np.broadcast_to(data, like.shape).astype(like.dtype, copy=False)
    return whole


def _tensor(data: Array, part: Any, shape: tuple[int, ...]) -> Any:
    return as_tensor(TensorHandle(data, part.dtype), part.dtype, shape)


def _unknown(part: Any, shape: tuple[int, ...]) -> Any:
    return as_tensor(opaque(part.handle.data, shape or (1,), part.dtype), part.dtype, shape)
