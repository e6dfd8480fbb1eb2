"""The 8-bit float e4m3 (OCP 8-bit floating point, "e4m3fn") in numpy, which has none: codes to numbers and back.

Triton's own interpreter rounds halves up and lets a mantissa that overflows damage the exponent.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

_SIGN, _NAN = 0x80, 0x7F


@functools.cache
def _magnitudes() -> npt.NDArray[np.float32]:
    """Of the codes 0x00 to 0x7E, in order: 4 bits of exponent with bias 7, 3 bits of mantissa, the largest 448."""
    codes = np.arange(_NAN)
    exponent, mantissa = codes >> 3, codes & 7
    values = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    return values.astype(np.float32)


def decode(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """The numbers that ``codes`` stand for."""
    numbers = np.append(_magnitudes(), np.float32(np.nan))[codes & _NAN]
    return np.where(codes & _SIGN, -numbers, numbers)


def encode(numbers: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The nearest codes, halves to even; what is too large becomes the largest, as ``cvt.satfinite`` has it."""
    known = _magnitudes()
    middles = (known[1:] + known[:-1]) / 2
    size = np.abs(numbers)
    below, above = (np.searchsorted(middles, size, side=side) for side in ("left", "right"))
    codes = np.where(below % 2 == 0, below, above).astype(np.uint8)
    codes = np.where(np.isnan(numbers), np.uint8(_NAN), codes)
    return np.where(np.signbit(numbers), codes | np.uint8(_SIGN), codes)
