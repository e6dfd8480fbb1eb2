"""Triton kernels of ``layer_norm_linear`` and ``rms_norm_gelu_linear``."""

from __future__ import annotations

import triton
import triton.language as tl

from tilescope_kernels._shared.activations import activate, activate_with_derivative


@triton.jit
def normed_rows_kernel(
    y_ptr, x_ptr, norm_weight_ptr, norm_bias_ptr, x_stride, columns, eps, RMS_GELU: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """``layer_norm(x)`` or, with ``RMS_GELU``, ``gelu(rms_norm(x))``. One row per program, read once."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    if not RMS_GELU:
        x = tl.where(mask, x - tl.sum(x) / columns, 0.0)
    y = x * tl.rsqrt(tl.sum(x * x) / columns + eps)
    # Every row reads the norm's parameters again, so they should stay in cache.
    if norm_weight_ptr is not None:
        y *= tl.load(norm_weight_ptr + column, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
    if norm_bias_ptr is not None:
        y += tl.load(norm_bias_ptr + column, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
    if RMS_GELU:
        y = activate(y, 1)
    tl.store(y_ptr + row * columns + column, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def rms_norm_gelu_backward_kernel(
    dx_ptr, partial_ptr, dy_ptr, x_ptr, norm_weight_ptr, x_stride, rows, columns, eps, BLOCK: tl.constexpr
):
    """``dx`` of gelu(rms_norm(x)) for rows ``program, program + programs, ...``, and their share of the weight's gradient.

    With n = x * rstd, d = dy * gelu'(n * weight) and g = d * weight: dx = rstd * (g - n * mean(g * n)), and the weight's
    gradient is the sum of d * n over rows. 1 / RMS is recomputed, which needs no further read of x.
    """
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    weight = 1.0
    if norm_weight_ptr is not None:
        weight = tl.load(norm_weight_ptr + column, mask=mask, other=0.0)
    dw = tl.zeros((BLOCK,), tl.float32)
    for row in range(program, rows, tl.num_programs(0)):
        start = row + tl.full((), 0, tl.int64)  # int64; the interpreter's loop index has no .to()
        x = tl.load(x_ptr + start * x_stride + column, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + start * columns + column, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(x * x) / columns + eps)
        normed = x * rstd
        gain = weight if norm_weight_ptr is None else weight.to(tl.float32)
        _, slope = activate_with_derivative(normed * gain, 1)
        g = dy * slope
        dw += g * normed
        g *= gain
        dx = (g - normed * (tl.sum(g * normed) / columns)) * rstd
        tl.store(dx_ptr + start * columns + column, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    if partial_ptr is not None:
        tl.store(partial_ptr + program.to(tl.int64) * columns + column, dw, mask=mask)
