"""Encodes and decodes the floats that NumPy lacks: bfloat16 and two 8-bit formats. Imports torch.

Formats have Triton's names: ``bf16`` in uint16, ``fp8e4nv`` (e4m3) and ``fp8e5`` (e5m2) in uint8. Triton's own interpreter rounds
ties of 8-bit floats up, and an overflowing mantissa damages the exponent.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._python_dispatch import _disable_current_modes

#: PyTorch's types of the 8-bit formats, and the number of finite codes from 0 on, whose values ascend.
_EIGHT_BITS = {"fp8e4nv": (torch.float8_e4m3fn, 0x7F), "fp8e5": (torch.float8_e5m2, 0x7C)}
_SIGN, _NAN = 0x80, 0x7F

FORMATS = frozenset({"bf16", *_EIGHT_BITS})

Array = npt.NDArray[Any]


def decode(codes: Array, kind: str) -> npt.NDArray[np.float32]:
    """Decodes the codes of one of ``FORMATS`` to fp32."""
    return (codes.astype(np.uint32) << 16).view(np.float32) if kind == "bf16" else _numbers(kind)[codes]


def encode(numbers: Array, kind: str) -> Array:
    """Encodes numbers, rounding ties to even. NaN stays NaN. 8-bit formats saturate; ``bf16`` has infinities."""
    return _to_bfloat16(numbers.astype(np.float32)) if kind == "bf16" else _to_eight_bits(numbers, kind)


@functools.cache
def _numbers(kind: str) -> npt.NDArray[np.float32]:
    """The values of the 256 codes of an 8-bit format."""
    # Modes that count operators must not see this one, which is not the program's.
    with _disable_current_modes():
        codes = torch.arange(256, dtype=torch.uint8).view(_EIGHT_BITS[kind][0])
        numbers: npt.NDArray[np.float32] = codes.float().numpy()
    return numbers


def _to_eight_bits(numbers: Array, kind: str) -> Array:
    """Encodes as ``cvt.satfinite``: too large numbers become the largest finite one."""
    known = _numbers(kind)[: _EIGHT_BITS[kind][1]]
    middles, size = (known[1:] + known[:-1]) / 2, np.abs(numbers)
    below, above = (np.searchsorted(middles, size, side=side) for side in ("left", "right"))
    codes = np.where(below % 2 == 0, below, above).astype(np.uint8)
    codes = np.where(np.isnan(numbers), np.uint8(_NAN), codes)
    return np.where(np.signbit(numbers), codes | np.uint8(_SIGN), codes)


def _to_bfloat16(values: npt.NDArray[np.float32]) -> Array:
    bits = np.ascontiguousarray(values).view(np.uint32).reshape(values.shape)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)
