"""Exponentials of differences to a maximum, in fp32."""

from __future__ import annotations

import triton
import triton.language as tl

#: log2(e): the hardware computes powers of 2.
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def exp(x):
    """``exp`` of fp32 ``x``. Flushes results below 2^-126 to 0; ``tl.exp`` keeps them, with three more instructions."""
    return tl.exp2(x * LOG2_E)


@triton.jit
def finite(largest):
    """The maximum as a shift: 0 instead of an infinity, because inf - inf is NaN."""
    return tl.where(tl.abs(largest) == float("inf"), 0.0, largest)


@triton.jit
def merge(largest, total, other_largest, other_total):
    """Merge maximum and sum of exponentials of two sets. Each sum is relative to its set's ``finite`` maximum."""
    raised = tl.maximum(largest, other_largest)
    shift = finite(raised)
    scaled = total * tl.exp2((largest - shift) * LOG2_E)
    return raised, scaled + other_total * tl.exp2((other_largest - shift) * LOG2_E)
