"""The 8-bit floats e4m3 ("e4m3fn") and e5m2 (both OCP 8-bit floating point) in numpy, which has neither.

Triton's own interpreter rounds halves up and lets a mantissa that overflows damage the exponent.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

_SIGN, _NAN, _INFINITY_E5M2 = 0x80, 0x7F, 0x7C


@functools.cache
def _magnitudes() -> npt.NDArray[np.float32]:
    """Of the codes 0x00 to 0x7E, in order: 4 bits of exponent with bias 7, 3 bits of mantissa, the largest 448."""
    codes = np.arange(_NAN)
    exponent, mantissa = codes >> 3, codes & 7
    values = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    return values.astype(np.float32)


def decode(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """The numbers that e4m3 ``codes`` stand for."""
    numbers = np.append(_magnitudes(), np.float32(np.nan))[codes & _NAN]
    return np.where(codes & _SIGN, -numbers, numbers)


def encode(numbers: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The nearest e4m3 codes, halves to even; what is too large becomes the largest, as ``cvt.satfinite`` has it."""
    return _nearest(numbers, _magnitudes())


@functools.cache
def _magnitudes_e5m2() -> npt.NDArray[np.float32]:
    """Of the codes 0x00 to 0x7B, in order: the upper halves of fp16 numbers, the largest 57344."""
    return (np.arange(_INFINITY_E5M2, dtype=np.uint16) << 8).view(np.float16).astype(np.float32)


def decode_e5m2(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """The numbers that e5m2 ``codes`` stand for."""
    return (codes.astype(np.uint16) << 8).view(np.float16).astype(np.float32)


def encode_e5m2(numbers: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The nearest e5m2 codes, as ``encode``."""
    return _nearest(numbers, _magnitudes_e5m2())


def _nearest(numbers: npt.NDArray[Any], known: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Codes of the nearest of the ``known`` magnitudes, which ascend from zero as their codes do."""
    middles = (known[1:] + known[:-1]) / 2
    size = np.abs(numbers)
    below, above = (np.searchsorted(middles, size, side=side) for side in ("left", "right"))
    codes = np.where(below % 2 == 0, below, above).astype(np.uint8)
    codes = np.where(np.isnan(numbers), np.uint8(_NAN), codes)
    return np.where(np.signbit(numbers), codes | np.uint8(_SIGN), codes)
