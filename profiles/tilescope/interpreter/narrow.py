"""Floats narrower than numpy has them, kept as codes: bfloat16 and the two 8-bit formats. Pure numpy.

Formats go by Triton's names: ``bf16`` in uint16, ``fp8e4nv`` and ``fp8e5`` in uint8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tilescope.interpreter import float8

FORMATS = frozenset({"bf16", "fp8e4nv", "fp8e5"})

Array = npt.NDArray[Any]


def decode(codes: Array, kind: str) -> npt.NDArray[np.float32]:
    """The numbers that codes of one of ``FORMATS`` stand for."""
    if kind == "bf16":
        return (codes.astype(np.uint32) << 16).view(np.float32)
    return float8.decode(codes) if kind == "fp8e4nv" else float8.decode_e5m2(codes)


def encode(numbers: Array, kind: str) -> Array:
    """The nearest codes, halves to even; a NaN stays one, and only ``bf16`` has infinities."""
    if kind == "bf16":
        return _to_bfloat16(numbers.astype(np.float32))
    return float8.encode(numbers) if kind == "fp8e4nv" else float8.encode_e5m2(numbers)


def _to_bfloat16(values: npt.NDArray[np.float32]) -> Array:
    bits = np.ascontiguousarray(values).view(np.uint32).reshape(values.shape)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)
