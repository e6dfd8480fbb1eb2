"""``tl.dot_scaled`` in NumPy: products of numbers with one scale for each group along K. Imports triton.

The formats are those of the OCP Microscaling Formats (MX) Specification 1.0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime.interpreter import TensorHandle, interpreter_semantic

from tilescope.interpreter import narrow
from tilescope.interpreter.blocks import Array, is_opaque, opaque, plain
from tilescope.interpreter.meter import Counting

#: Values of the eight 4-bit codes without a sign.
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)
_KINDS = ir.ScaleDotElemTypeTY
#: Triton's names of the formats that ``narrow`` decodes.
_NARROW = {_KINDS.E4M3: "fp8e4nv", _KINDS.E5M2: "fp8e5", _KINDS.BF16: "bf16"}


class _Format(str):
    """A format's name. Triton 3.6 reads its ``value``, 3.9 takes the text."""

    __slots__ = ()

    @property
    def value(self) -> str:
        return str(self)


def dot_scaled(  # noqa: PLR0917 (the language's)
    lhs: Any,
    lhs_scale: Any,
    lhs_format: Any,
    rhs: Any,
    rhs_scale: Any,
    rhs_format: Any,
    acc: Any = None,
    fast_math: Any = False,
    lhs_k_pack: Any = True,
    rhs_k_pack: Any = True,
    out_dtype: Any = tl.float32,
    **_: Any,
) -> Any:
    """The language's function: checks the operands as Triton does, and calls the builder."""
    formats = [_Format(plain(given)) for given in (lhs_format, rhs_format)]
    scales = [plain(given) for given in (lhs_scale, rhs_scale)]
    packed = [bool(plain(given)) for given in (lhs_k_pack, rhs_k_pack)]
    return interpreter_semantic.dot_scaled(
        lhs, scales[0], formats[0], rhs, scales[1], formats[1], plain(acc), fast_math, *packed, plain(out_dtype)
    )


def product(counting: Counting, *given: Any) -> Any:
    """The builder's method: computes a product in fp32. ``b_scale`` has the layout of the transposed operand."""
    a, a_scale, a_kind, b, b_scale, b_kind, _fast_math, a_k_packed, b_k_packed, added = given
    steps = a.data.shape[-1] * (2 if a_kind == _KINDS.E2M1 and a_k_packed else 1)
    counting.flops(2 * added.data.size * steps)
    if is_opaque([x for x in (a, a_scale, b, b_scale, added) if x is not None]):
        return opaque(added.data, added.data.shape, added.dtype.scalar)
    left = _scaled(_numbers(a.data, a_kind, a_k_packed), a_scale)
    right = _scaled(_numbers(np.swapaxes(b.data, -1, -2), b_kind, b_k_packed), b_scale)
    return TensorHandle(left @ np.swapaxes(right, -1, -2) + added.data, added.dtype.scalar)


def _numbers(codes: Array, kind: Any, k_packed: bool) -> Array:
    """The values of codes, with K as the last dimension."""
    if kind in _NARROW:
        return narrow.decode(codes, _NARROW[kind])
    if kind != _KINDS.E2M1:
        return codes.astype(np.float32)
    pairs = np.stack([codes & 15, codes >> 4], axis=-1) if k_packed else np.stack([codes & 15, codes >> 4], axis=-2)
    halves = pairs.reshape(*codes.shape[:-1], -1) if k_packed else pairs.reshape(*codes.shape[:-2], -1, codes.shape[-1])
    signs = np.where(halves & 8, np.float32(-1), np.float32(1))
    numbers: Array = _E2M1[halves & 7] * signs
    return numbers


def _scaled(numbers: Array, scale: Any) -> Array:
    """Multiplies the numbers by the scale of their group."""
    if scale is None:
        return numbers
    codes = scale.data
    if scale.dtype.scalar.name in narrow.FORMATS:
        factors = narrow.decode(codes, scale.dtype.scalar.name)
    else:  # an exponent with bias 127; 255 is NaN
        factors = np.where(codes == 255, np.float32(np.nan), np.ldexp(np.float32(1), codes.astype(np.int32) - 127))
    product: Array = numbers * np.repeat(factors, numbers.shape[-1] // codes.shape[-1], axis=-1)
    return product
