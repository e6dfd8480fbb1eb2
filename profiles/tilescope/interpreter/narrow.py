"""Encodes and decodes the floats that NumPy lacks: bfloat16 and two 8-bit formats. Imports torch.

Formats have Triton's names: ``bf16`` in uint16, ``fp8e4nv`` (e4m3) and ``fp8e5`` (e5m2) in uint8. Triton's own interpreter rounds
ties of 8-bit floats up, and an overflowing mantissa damages the exponent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._python_dispatch import _disable_current_modes

_EIGHT_BITS = {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}

FORMATS = frozenset({"bf16", *_EIGHT_BITS})

Array = npt.NDArray[Any]


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
