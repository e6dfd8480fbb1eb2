"""Kernels of the norms for rows that are cut into parts, forward and backward, with or without a mean to remove."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.cut_rows import GATHER, PUBLISH, cut, gather, publish
from tilescope_kernels._shared.launching import device_of
from tilescope_kernels._shared.row_tiles import narrow
from tilescope_kernels._shared.weight_gradients import sum_partials, sums_dtype


@triton.jit
def _add(first, second, other_first, other_second):
    return first + other_first, second + other_second


@triton.jit
def _merge(means, squares, exist, columns, BLOCK: tl.constexpr, PARTS: tl.constexpr, CENTRED: tl.constexpr):
    """Mean and variance of a row, or 0 and the mean of its squares, from each part's mean and squares about it."""
    mean = 0.0
    total = tl.where(exist, squares, 0.0)
    if CENTRED:
        part = tl.arange(0, PARTS)
        count = tl.where(exist, tl.minimum(BLOCK, columns - part * BLOCK), 0)
        # Distances from one part's mean: far from zero, their sum is exact.
        near = tl.sum(tl.where(part == 0, means, 0.0), axis=0)
        away = tl.sum((means - near) * count, axis=0) / columns
        mean = near + away
        between = means - near - away
        total += tl.where(exist, between * between * count, 0.0)
    return mean, tl.sum(total, axis=0) / columns


@triton.jit
def _affine(y, weight, bias, sign):
    """``y * weight + bias`` with what is not None. A row widens both again: as fp32 they would take too many registers."""
    if weight is not None:
        y *= narrow(weight, sign).to(tl.float32)
    if bias is not None:
        y += narrow(bias, sign).to(tl.float32)
    return y


@triton.jit
def _store_statistics(stats_ptr, row, mean, rstd, CENTRED: tl.constexpr):
    if CENTRED:
        tl.store(stats_ptr + 2 * row, mean)
        tl.store(stats_ptr + 2 * row + 1, rstd)
    else:
        tl.store(stats_ptr + row, rstd)


@triton.jit
def _statistics(stats_ptr, row, CENTRED: tl.constexpr):
    if CENTRED:
        mean = tl.load(stats_ptr + 2 * row)
        rstd = tl.load(stats_ptr + 2 * row + 1)
    else:
        mean = 0.0
        rstd = tl.load(stats_ptr + row)
    return mean, rstd


@triton.jit
def _load(ptr, column, mask):
    values = None
    if ptr is not None:
        values = tl.load(ptr + column, mask=mask, other=0.0)
    return values


@triton.jit
def _weighted(dy, weight):
    g = dy.to(tl.float32)
    if weight is not None:
        g *= weight.to(tl.float32)
    return g


@triton.jit
def norm_parts_kernel(
    y_ptr, sum_ptr, stats_ptr, words_ptr, x_ptr, residual_ptr, weight_ptr, bias_ptr, x_stride, residual_stride,
    rows, columns, parts, eps,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, CENTRED: tl.constexpr, PHASE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One part of the rows ``group, group + groups, ...``. Pointers but of x, y and words may be None.

    What is normalised is x, or x + ``residual``, which is stored to ``sum``. ``stats`` are each row's 1 / RMS or, if
    ``CENTRED``, its mean and 1 / standard deviation.
    """
    part = tl.program_id(0) % parts
    group = tl.program_id(0) // parts
    groups = tl.num_programs(0) // parts
    column = part * BLOCK + tl.arange(0, BLOCK)
    mask = column < columns
    weight = _load(weight_ptr, column, mask)
    bias = _load(bias_ptr, column, mask)
    # Multiplied before it is added up, or the sum of numbers that fp32 can hold may be one that it cannot.
    share = 1.0 / tl.minimum(BLOCK, columns - part * BLOCK)
    for row in tl.range(group, rows, groups, num_stages=STAGES):
        start = row + tl.full((), 0, tl.int64)  # 64 bits wide; interpreted, a loop's index has no .to()
        x = tl.load(x_ptr + start * x_stride + column, mask=mask, other=0.0)
        if residual_ptr is not None:
            residual = tl.load(residual_ptr + start * residual_stride + column, mask=mask, other=0.0)
            # Rounded before it is normalised, so that the norm is that of the residual stream which the caller gets.
            x = (x.to(tl.float32) + residual.to(tl.float32)).to(sum_ptr.dtype.element_ty)
            if PHASE != PUBLISH:
                tl.store(sum_ptr + start * columns + column, x, mask=mask)
        if PHASE != GATHER:
            # Of each part the mean and the squares of what is apart from it, so that a large mean drowns nothing.
            mean = 0.0
            apart = x.to(tl.float32)
            if CENTRED:
                mean = tl.sum(apart * share, axis=0)
                apart = tl.where(mask, apart - mean, 0.0)
            publish(words_ptr + start * parts + part, tl.full((), 0, tl.float32) + mean, tl.sum(apart * apart, axis=0))
        if PHASE != PUBLISH:
            means, squares, exist = gather(words_ptr + start * parts, parts, PARTS, PHASE)
            mean, variance = _merge(means, squares, exist, columns, BLOCK, PARTS, CENTRED)
            rstd = tl.rsqrt(variance + eps)
            y = (narrow(x, columns).to(tl.float32) - mean) * rstd
            y = _affine(y, weight, bias, rstd.to(tl.int32, bitcast=True))
            tl.store(y_ptr + start * columns + column, y.to(y_ptr.dtype.element_ty), mask=mask)
            if stats_ptr is not None and part == 0:
                _store_statistics(stats_ptr, start, mean, rstd, CENTRED)


@triton.jit
def norm_parts_backward_kernel(
    dx_ptr, partial_ptr, words_ptr, dy_ptr, dsum_ptr, x_ptr, weight_ptr, stats_ptr, x_stride, rows, columns, parts,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, CENTRED: tl.constexpr, PHASE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """``dx`` of one part of the rows ``group, group + groups, ...`` and, unless ``partial`` is None, these rows' dW and dB.

    With n = (x - mean) * rstd and g = dy * weight: dx = rstd * (g - mean(g) - n * mean(g * n)) + dsum, dW = sum of dy * n
    and dB = sum of dy over rows. Only if ``CENTRED`` are there a mean and dB. ``dsum`` and ``weight`` may be None.
    """
    part = tl.program_id(0) % parts
    group = tl.program_id(0) // parts
    groups = tl.num_programs(0) // parts
    column = part * BLOCK + tl.arange(0, BLOCK)
    mask = column < columns
    dw = tl.zeros((BLOCK,), tl.float32)
    db = tl.zeros((BLOCK,), tl.float32)
    weight = _load(weight_ptr, column, mask)
    for row in tl.range(group, rows, groups, num_stages=STAGES):
        start = row + tl.full((), 0, tl.int64)  # 64 bits wide; interpreted, a loop's index has no .to()
        x = tl.load(x_ptr + start * x_stride + column, mask=mask, other=0.0)
        dy = tl.load(dy_ptr + start * columns + column, mask=mask, other=0.0)
        mean, rstd = _statistics(stats_ptr, start, CENTRED)
        if PHASE != GATHER:
            # A lane beyond the row has a dy of 0, so it adds nothing.
            g = _weighted(dy, weight)
            products = g * ((x.to(tl.float32) - mean) * rstd)
            if CENTRED:
                sum_g, inner = tl.reduce((g, products), 0, _add)
            else:
                sum_g = tl.full((), 0, tl.float32)
                inner = tl.sum(products, axis=0)
            publish(words_ptr + start * parts + part, sum_g, inner)
        if PHASE != PUBLISH:
            sums_g, inners, exist = gather(words_ptr + start * parts, parts, PARTS, PHASE)
            inner = tl.sum(tl.where(exist, inners, 0.0), axis=0) / columns
            mean_g = tl.sum(tl.where(exist, sums_g, 0.0), axis=0) / columns if CENTRED else 0.0
            normed = (narrow(x, columns).to(tl.float32) - mean) * rstd
            grad = narrow(dy, columns)
            dw += grad.to(tl.float32) * normed
            db += grad.to(tl.float32)
            dx = (_weighted(grad, weight) - normed * inner - mean_g) * rstd
            if dsum_ptr is not None:
                dx += tl.load(dsum_ptr + start * columns + column, mask=mask, other=0.0).to(tl.float32)
            tl.store(dx_ptr + start * columns + column, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    if partial_ptr is not None and PHASE != PUBLISH:
        place = partial_ptr + group.to(tl.int64) * columns + column
        tl.store(place, dw, mask=mask)
        if CENTRED:
            tl.store(place + groups.to(tl.int64) * columns, db, mask=mask)


def forward_in_parts(
    y: torch.Tensor, total: torch.Tensor | None, stats: torch.Tensor | None, x: torch.Tensor,
    residual: torch.Tensor | None, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, *, centred: bool,
    block: int = 8192, programs: int = 3, warps: int = 8, stages: int = 2,
) -> None:  # fmt: skip
    """Fill y, the sum of x and ``residual`` if that is given, and, unless None, the rows' statistics."""
    rows, columns = x.shape
    cuts = cut(x, block, programs, warps)
    with device_of(x):
        for phase, options in cuts.launches:
            norm_parts_kernel[cuts.grid](
                y, total, stats, cuts.words, x, residual, weight, bias, x.stride(0),
                0 if residual is None else residual.stride(0), rows, columns, cuts.parts, eps,
                BLOCK=block, PARTS=triton.next_power_of_2(cuts.parts), CENTRED=centred, PHASE=phase, STAGES=stages,
                **options,
            )  # fmt: skip


def backward_in_parts(
    dy: torch.Tensor, dsum: torch.Tensor | None, x: torch.Tensor, weight: torch.Tensor | None, stats: torch.Tensor,
    sums: bool, *, centred: bool, block: int = 4096, programs: int = 3, warps: int = 8, stages: int = 2,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """dx and, if ``sums``, dW and (``centred``) dB as the rows of one tensor."""
    rows, columns = x.shape
    cuts = cut(x, block, programs, warps)
    dx = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    partial = torch.empty((1 + centred, cuts.groups, columns), device=x.device) if sums else None
    with device_of(x):
        for phase, options in cuts.launches:
            norm_parts_backward_kernel[cuts.grid](
                dx, partial, cuts.words, dy, dsum, x, weight, stats, x.stride(0), rows, columns, cuts.parts,
                BLOCK=block, PARTS=triton.next_power_of_2(cuts.parts), CENTRED=centred, PHASE=phase, STAGES=stages,
                **options,
            )  # fmt: skip
    return dx, None if partial is None else sum_partials(partial, sums_dtype(x, weight))
