"""Encodes and decodes the floats that NumPy lacks: bfloat16 and two 8-bit formats. Finds sums in half precision that no longer grow.

Formats have Triton's names: ``bf16`` in uint16, ``fp8e4nv`` (e4m3) and ``fp8e5`` (e5m2) in uint8. Triton's own interpreter rounds
ties of 8-bit floats up, and an overflowing mantissa damages the exponent. Imports torch and triton.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._python_dispatch import _disable_current_modes

from tilescope.interpreter.blocks import Array, is_opaque
from tilescope.interpreter.meter import Counting

_EIGHT_BITS = {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}

FORMATS = frozenset({"bf16", *_EIGHT_BITS})

_HALF = frozenset({"bf16", "fp16"})
#: The attributes with a sum's number of additions, and with the sum in half precision to which an fp32 block adds.
_ADDITIONS, _OF = "tilescope.additions", "tilescope.sum"
#: The number of additions from which sums are looked at, and the share of elements that one leaves unchanged in a sum that is stuck.
_LONG, _MOST = 64, 0.5


def decode(codes: Array, kind: str) -> npt.NDArray[np.float32]:
    """Decodes the codes of one of ``FORMATS`` to fp32."""
    if kind == "bf16":
        return (codes.astype(np.uint32) << 16).view(np.float32)
    # Modes that count operators must not see this one, which is not the program's.
    with _disable_current_modes():
        numbers: npt.NDArray[np.float32] = torch.from_numpy(codes.copy()).view(_EIGHT_BITS[kind]).float().numpy()
    return numbers


def encode(numbers: Array, kind: str) -> Array:
    """Encodes numbers, rounding ties to even. NaN stays NaN. 8-bit formats saturate; ``bf16`` has infinities."""
    if kind == "bf16":
        return _to_bfloat16(numbers.astype(np.float32))
    with _disable_current_modes():
        largest = torch.finfo(_EIGHT_BITS[kind]).max
        codes = torch.from_numpy(np.clip(numbers, -largest, largest)).to(_EIGHT_BITS[kind]).view(torch.uint8)
        encoded: Array = codes.numpy()
    return encoded


def _to_bfloat16(values: npt.NDArray[np.float32]) -> Array:
    bits = np.ascontiguousarray(values).view(np.uint32).reshape(values.shape)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def added(counting: Counting, a: Any, b: Any, result: Any) -> None:
    """Looks at an addition of two blocks."""
    if _ADDITIONS not in a.attr and _ADDITIONS in b.attr:
        a, b = b, a
    if result.dtype.scalar.name in _HALF:
        _follow(counting, a, result, lambda: _numbers(b) != 0)
    elif (half := a.attr.get(_OF, b.attr.get(_OF))) is not None:
        result.set_attr(_OF, half)


def converted(counting: Counting, source: Any, result: Any) -> None:
    """Looks at a conversion: a sum may be computed in fp32 and rounded after each addition."""
    if source.dtype.scalar.name in _HALF and result.dtype.scalar.name == "fp32":
        result.set_attr(_OF, source)
    elif result.dtype.scalar.name in _HALF and (half := source.attr.get(_OF)) is not None:
        _follow(counting, half, result, lambda: source.data != _numbers(half))


def loaded(counting: Counting, pointers: Any, result: Any) -> None:
    """Looks at a load: memory may hold a sum."""
    if counting.sums and (additions := counting.sums.get(int(pointers.data.flat[0]))):
        result.set_attr(_ADDITIONS, additions)


def stored(counting: Counting, pointers: Any, value: Any) -> None:
    """Looks at a store, which may keep a sum."""
    if _ADDITIONS in value.attr and value.dtype.scalar.name in _HALF:
        counting.sums[int(pointers.data.flat[0])] = value.attr[_ADDITIONS]


def atomic(counting: Counting, before: Any, value: Any, mask: Array) -> None:
    """Looks at atomic additions to the values ``before``."""
    kind, line, meter = value.dtype.scalar.name, counting.line(), counting.meter
    programs = len(meter.seen.atomics[line].programs) if meter and line in meter.seen.atomics else 0
    if kind in _HALF and programs >= _LONG and mask.any():
        total = (_numbers(before) + _numbers(value))[mask]
        rounded = decode(encode(total, kind), kind) if kind in FORMATS else total
        if np.mean((rounded == _numbers(before)[mask]) & (_numbers(value)[mask] != 0)) > _MOST and meter:
            meter.seen.stuck.setdefault(line, (kind, programs))


def _follow(counting: Counting, half: Any, result: Any, lost: Callable[[], Array]) -> None:
    """Counts an addition to the sum ``half``. ``lost`` tells the elements in which it should have changed the sum."""
    additions = half.attr.get(_ADDITIONS, 0) + 1
    result.set_attr(_ADDITIONS, additions)
    if additions < _LONG or counting.meter is None or is_opaque((half, result)):
        return
    if np.mean((result.data == half.data) & lost()) > _MOST:
        counting.meter.seen.stuck.setdefault(counting.line(), (result.dtype.scalar.name, additions))


def _numbers(block: Any) -> Array:
    kind = block.dtype.scalar.name
    data: Array = decode(block.data, kind) if kind in FORMATS else block.data
    return data
