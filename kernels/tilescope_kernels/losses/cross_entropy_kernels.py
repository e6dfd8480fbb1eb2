"""Triton kernels of ``cross_entropy``: the loss of each row, with or without its gradient, and the gradient alone."""

from __future__ import annotations

import triton
import triton.language as tl

from tilescope_kernels._shared.exponentials import LOG2_E
from tilescope_kernels._shared.online_softmax import sum_exp
from tilescope_kernels._shared.row_tiles import columns_of, ends, whole_part


@triton.jit
def _gradient_piece(
    dx_ptr, x_ptr, column, mask, target, has_target, shift, log, scale, smoothing, columns, SMOOTH: tl.constexpr
):
    """Gradient of one step of a row. ``has_target`` tells whether the target is among its columns."""
    # These bytes are not read again: they should not evict rows that other programs will read.
    x = tl.load(x_ptr + column, mask=mask, eviction_policy="evict_first").to(tl.float32)
    # The shift is subtracted separately: shift + log would lose the logarithm's low bits if logits are large.
    dx = tl.exp2((x - shift) * LOG2_E - log * LOG2_E)
    if SMOOTH:
        dx -= smoothing / columns
    if has_target:
        dx = tl.where(column == target, dx - (1.0 - smoothing), dx)
    dx *= scale
    tl.store(dx_ptr + column, dx.to(dx_ptr.dtype.element_ty), mask=mask, cache_modifier=".cs")


@triton.jit
def _gradient_row(
    dx_ptr, x_ptr, before, length, columns, target, shift, log, scale, smoothing,
    SMOOTH: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, SKEWED: tl.constexpr,
):  # fmt: skip
    """``scale * (softmax(x) - (1 - smoothing) * onehot(target) - smoothing / columns)`` of one row, walked backwards.

    The row's end was read last and is still in cache. Pointers, ``before`` and ``length`` are those of the row's ``whole_part``.
    """
    step: tl.constexpr = LANES * WIDTH
    offsets = columns_of(0, LANES, WIDTH)
    steps = length // step
    # In 32 bits, to compare it with columns cheaply. A target that is no class stays out of range.
    target = tl.where((target >= 0) & (target < columns), target - before, columns).to(tl.int32)
    # Masks cost instructions: only the row's ends have one. Only the step that has the target compares columns with it.
    start = steps * step
    mask = start + offsets < length
    _gradient_piece(
        dx_ptr, x_ptr, start + offsets, mask, target, (target >= start) & (target < length),
        shift, log, scale, smoothing, columns, SMOOTH,
    )  # fmt: skip
    for index in range(0, steps):
        start = (steps - 1 - index) * step
        _gradient_piece(
            dx_ptr, x_ptr, start + offsets, None, target, (target >= start) & (target < start + step),
            shift, log, scale, smoothing, columns, SMOOTH,
        )  # fmt: skip
    if SKEWED:
        offset, inside = ends(before, length, columns, WIDTH)
        _gradient_piece(
            dx_ptr, x_ptr, offset, inside, target, (target < 0) | (target >= length),
            shift, log, scale, smoothing, columns, SMOOTH,
        )  # fmt: skip


@triton.jit
def _zero_row(dx_ptr, before, length, columns, LANES: tl.constexpr, WIDTH: tl.constexpr, SKEWED: tl.constexpr):
    offsets = columns_of(0, LANES, WIDTH)
    for start in range(0, length, LANES * WIDTH):
        zeros = tl.zeros((LANES, WIDTH), dx_ptr.dtype.element_ty)
        tl.store(dx_ptr + start + offsets, zeros, mask=start + offsets < length)
    if SKEWED:
        offset, inside = ends(before, length, columns, WIDTH)
        tl.store(dx_ptr + offset, tl.zeros((2 * WIDTH,), dx_ptr.dtype.element_ty), mask=inside)


@triton.jit
def cross_entropy_kernel(
    loss_ptr, parts_ptr, dx_ptr, x_ptr, target_ptr, count_ptr, x_stride, rows, columns, ignore_index, smoothing,
    SMOOTH: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, SKEWED: tl.constexpr,
):  # fmt: skip
    """Loss, ``parts`` (shift, log) and gradient ``dx`` of rows ``program, program + programs, ...``.

    ``parts`` and ``dx`` may be None; ``dx`` may be ``x``. ``count`` divides ``dx`` unless None.
    """
    scale = 1.0
    if dx_ptr is not None and count_ptr is not None:
        scale = 1.0 / tl.load(count_ptr).to(tl.float32)
    for index in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = index + tl.full((), 0, tl.int64)  # int64; the interpreter's loop index has no .to()
        target = tl.load(target_ptr + row)
        counts = target != ignore_index
        begin, before, length = whole_part(row * x_stride, columns, WIDTH, SKEWED)
        x_row = x_ptr + begin
        # A target that is no class makes the loss NaN, without a read beyond the row. Loaded before the row's reduction, a
        # barrier for all threads: afterwards dx may overwrite x.
        inside = counts & (target >= 0) & (target < columns)
        chosen = tl.load(x_row + (target - before), mask=inside, other=float("nan")).to(tl.float32)
        _, shift, exponentials, total = sum_exp(
            x_row, before, length, columns, LANES, WIDTH, SKEWED, SMOOTH, dx_ptr is not None, counts
        )
        # Infinite if a logit is +inf or all are -inf: softmax is undefined, give NaN.
        log = tl.log(exponentials)
        log = tl.where(tl.abs(log) == float("inf"), float("nan"), log)
        loss = log + (shift - chosen)
        if SMOOTH:
            loss = (1.0 - smoothing) * loss + smoothing * (log + (shift - total / columns))
        tl.store(loss_ptr + row, tl.where(counts, loss, 0.0))
        if parts_ptr is not None:
            tl.store(parts_ptr + 2 * row, tl.where(counts, shift, 0.0))
            tl.store(parts_ptr + 2 * row + 1, tl.where(counts, log, 0.0))
        if dx_ptr is not None:
            dx_row = dx_ptr + begin
            if counts:
                _gradient_row(
                    dx_row, x_row, before, length, columns, target, shift, log, scale, smoothing,
                    SMOOTH, LANES, WIDTH, SKEWED,
                )  # fmt: skip
            else:
                _zero_row(dx_row, before, length, columns, LANES, WIDTH, SKEWED)


@triton.jit
def cross_entropy_backward_kernel(
    dx_ptr, dloss_ptr, x_ptr, target_ptr, parts_ptr, count_ptr, dloss_stride, x_stride, columns, ignore_index, smoothing,
    SMOOTH: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, SKEWED: tl.constexpr,
):  # fmt: skip
    """``dx`` of one row per program, from the logits and the two parts of their log-sum-exp. One read, one write.

    ``SKEWED`` rows are not 16-byte aligned; those of x and dx have the same misalignment.
    """
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(target_ptr + row)
    begin, before, length = whole_part(row * x_stride, columns, WIDTH, SKEWED)
    dx_ptr += begin if SKEWED else row * columns
    if target == ignore_index:
        _zero_row(dx_ptr, before, length, columns, LANES, WIDTH, SKEWED)
    else:
        scale = tl.load(dloss_ptr + row * dloss_stride).to(tl.float32)
        if count_ptr is not None:
            scale /= tl.load(count_ptr).to(tl.float32)
        shift, log = tl.load(parts_ptr + 2 * row), tl.load(parts_ptr + 2 * row + 1)
        _gradient_row(
            dx_ptr, x_ptr + begin, before, length, columns, target, shift, log, scale, smoothing,
            SMOOTH, LANES, WIDTH, SKEWED,
        )  # fmt: skip
