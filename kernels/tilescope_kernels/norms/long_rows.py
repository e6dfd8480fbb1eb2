"""The norms for rows that are too long for one program, split into parts in two launches, forward and backward.

One launch reduces each part. The other reads it again and uses the sums of all parts of its row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.launching import cdiv, launch, multiprocessors, next_power_of_2
from tilescope_kernels._shared.weight_gradients import sum_partials, sums_dtype

#: Columns of a part, forward and backward.
_BLOCK, _BLOCK_BACKWARD = 4096, 2048


@triton.jit
def _add(first, second, other_first, other_second):
    return first + other_first, second + other_second


@triton.jit
def _merge(count, mean, squares, other_count, other_mean, other_squares):
    """Merge count, mean and sum of squared deviations of two sets (Chan, Golub and LeVeque, 1979)."""
    both = count + other_count
    away = other_mean - mean
    share = other_count / tl.maximum(both, 1.0)
    between = tl.where((count == 0.0) | (other_count == 0.0), 0.0, away * away * count * share)
    merged = tl.where(count == 0.0, other_mean, tl.where(other_count == 0.0, mean, mean + away * share))
    return both, merged, squares + other_squares + between


@triton.jit
def _part_of_row(parts):
    """The part and the row of this program."""
    return tl.program_id(0) % parts, (tl.program_id(0) // parts).to(tl.int64)


@triton.jit
def _sums_of(sums_ptr, row, parts, PARTS: tl.constexpr):
    """Both sums of every part of a row."""
    part = tl.arange(0, PARTS)
    sums_ptr += 2 * (row * parts + part)
    exist = part < parts
    return tl.load(sums_ptr, mask=exist, other=0.0), tl.load(sums_ptr + 1, mask=exist, other=0.0)


@triton.jit
def norm_part_sums_kernel(
    sums_ptr, total_ptr, x_ptr, residual_ptr, x_stride, residual_stride, columns, parts, BLOCK: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    """A part's mean (0 unless ``CENTRED``) and sum of squared deviations. With a ``residual``, x + residual is stored to ``total``."""
    part, row = _part_of_row(parts)
    column = part * BLOCK + tl.arange(0, BLOCK)
    mask = column < columns
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0)
    if residual_ptr is not None:
        residual = tl.load(residual_ptr + row * residual_stride + column, mask=mask, other=0.0)
        # Rounded before it is normalized, so that y is the norm of the residual stream that is returned.
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + row * columns + column, x, mask=mask)
    apart = x.to(tl.float32)
    mean = tl.full((), 0, tl.float32)
    if CENTRED:
        # Scaled before the sum, which might overflow fp32 otherwise.
        mean = tl.sum(apart * (1.0 / tl.minimum(BLOCK, columns - part * BLOCK)), axis=0)
        apart = tl.where(mask, apart - mean, 0.0)
    sums_ptr += 2 * (row * parts + part)
    tl.store(sums_ptr, mean)
    tl.store(sums_ptr + 1, tl.sum(apart * apart, axis=0))


@triton.jit
def norm_parts_kernel(
    y_ptr, stats_ptr, sums_ptr, x_ptr, weight_ptr, bias_ptr, x_stride, columns, parts, eps,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    """A part of y. The first part also stores the row's 1 / RMS or, if ``CENTRED``, mean and 1 / standard deviation."""
    part, row = _part_of_row(parts)
    means, squares = _sums_of(sums_ptr, row, parts, PARTS)
    mean = 0.0
    if CENTRED:
        size = tl.minimum(BLOCK, columns - tl.arange(0, PARTS) * BLOCK)
        _, mean, total = tl.reduce((tl.maximum(size, 0).to(tl.float32), means, squares), 0, _merge)
    else:
        total = tl.sum(squares, axis=0)
    rstd = tl.rsqrt(total / columns + eps)
    column = part * BLOCK + tl.arange(0, BLOCK)
    mask = column < columns
    y = (tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0).to(tl.float32) - mean) * rstd
    if weight_ptr is not None:
        y *= tl.load(weight_ptr + column, mask=mask).to(tl.float32)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + column, mask=mask).to(tl.float32)
    tl.store(y_ptr + row * columns + column, y.to(y_ptr.dtype.element_ty), mask=mask)
    if stats_ptr is not None and part == 0:
        if CENTRED:
            tl.store(stats_ptr + 2 * row, mean)
            tl.store(stats_ptr + 2 * row + 1, rstd)
        else:
            tl.store(stats_ptr + row, rstd)


@triton.jit
def _gradient_of(dy_ptr, x_ptr, weight_ptr, stats_ptr, row, x_stride, columns, column, mask, CENTRED: tl.constexpr):
    """dy, dy * weight, normalized x, and 1 / RMS or 1 / standard deviation. Lanes beyond the row have dy = 0."""
    dy = tl.load(dy_ptr + row * columns + column, mask=mask, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    if CENTRED:
        rstd = tl.load(stats_ptr + 2 * row + 1)
        normed = (x - tl.load(stats_ptr + 2 * row)) * rstd
    else:
        rstd = tl.load(stats_ptr + row)
        normed = x * rstd
    g = dy
    if weight_ptr is not None:
        g = dy * tl.load(weight_ptr + column, mask=mask, other=0.0).to(tl.float32)
    return dy, g, normed, rstd


@triton.jit
def norm_part_inners_kernel(
    sums_ptr, dy_ptr, x_ptr, weight_ptr, stats_ptr, x_stride, columns, parts, BLOCK: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    """A part's sums of g and of g * n, as in ``norm_parts_backward_kernel``."""
    part, row = _part_of_row(parts)
    column = part * BLOCK + tl.arange(0, BLOCK)
    _, g, normed, _ = _gradient_of(
        dy_ptr, x_ptr, weight_ptr, stats_ptr, row, x_stride, columns, column, column < columns, CENTRED
    )
    sum_g, inner = tl.reduce((g, g * normed), 0, _add)
    sums_ptr += 2 * (row * parts + part)
    tl.store(sums_ptr, sum_g)
    tl.store(sums_ptr + 1, inner)


@triton.jit
def norm_parts_backward_kernel(
    dx_ptr, partial_ptr, sums_ptr, dy_ptr, dsum_ptr, x_ptr, weight_ptr, stats_ptr, x_stride, rows, columns, parts,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    """``dx`` of one part of rows ``group, group + groups, ...`` and, unless ``partial`` is None, their share of dW and dB.

    The formulas are those of ``norm_short_rows_backward_kernel``, with ``dsum`` added to dx. ``dsum`` and ``weight`` may be None.
    """
    part = tl.program_id(0) % parts
    group = tl.program_id(0) // parts
    groups = tl.num_programs(0) // parts
    column = part * BLOCK + tl.arange(0, BLOCK)
    mask = column < columns
    dw = tl.zeros((BLOCK,), tl.float32)
    db = tl.zeros((BLOCK,), tl.float32)
    for index in range(group, rows, groups):
        row = index + tl.full((), 0, tl.int64)  # int64; the interpreter's loop index has no .to()
        sums_g, inners = _sums_of(sums_ptr, row, parts, PARTS)
        dy, g, normed, rstd = _gradient_of(
            dy_ptr, x_ptr, weight_ptr, stats_ptr, row, x_stride, columns, column, mask, CENTRED
        )
        dw += dy * normed
        db += dy
        dx = g - normed * (tl.sum(inners, axis=0) / columns)
        if CENTRED:
            dx -= tl.sum(sums_g, axis=0) / columns
        dx *= rstd
        if dsum_ptr is not None:
            dx += tl.load(dsum_ptr + row * columns + column, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx_ptr + row * columns + column, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    if partial_ptr is not None:
        place = partial_ptr + group.to(tl.int64) * columns + column
        tl.store(place, dw, mask=mask)
        if CENTRED:
            tl.store(place + groups.to(tl.int64) * columns, db, mask=mask)


def forward_in_parts(
    y: torch.Tensor, total: torch.Tensor | None, stats: torch.Tensor | None, x: torch.Tensor,
    residual: torch.Tensor | None, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, *, centred: bool,
) -> None:  # fmt: skip
    """Fill y, ``total`` with x + ``residual`` if that is given, and ``stats`` unless it is None."""
    rows, columns = x.shape
    parts = cdiv(columns, _BLOCK)
    sums = torch.empty((rows, parts, 2), device=x.device)
    launch(
        norm_part_sums_kernel, (parts * rows,),
        sums, total, x, residual, x.stride(0), 0 if residual is None else residual.stride(0), columns, parts,
        BLOCK=_BLOCK, CENTRED=centred, num_warps=8,
    )  # fmt: skip
    whole = x if total is None else total
    launch(
        norm_parts_kernel, (parts * rows,), y, stats, sums, whole, weight, bias, whole.stride(0), columns, parts, eps,
        BLOCK=_BLOCK, PARTS=next_power_of_2(parts), CENTRED=centred, num_warps=8,
    )  # fmt: skip


def backward_in_parts(
    dy: torch.Tensor, dsum: torch.Tensor | None, x: torch.Tensor, weight: torch.Tensor | None, stats: torch.Tensor,
    sums: bool, *, centred: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """dx and, if ``sums``, dW and (if ``centred``) dB as rows of one tensor."""
    rows, columns = x.shape
    dx = x.new_empty(rows, columns)
    parts = cdiv(columns, _BLOCK_BACKWARD)
    groups = min(rows, max(1, 4 * multiprocessors(x) // parts))
    partial = torch.empty((1 + centred, groups, columns), device=x.device) if sums else None
    row_sums = torch.empty((rows, parts, 2), device=x.device)
    launch(
        norm_part_inners_kernel, (parts * rows,), row_sums, dy, x, weight, stats, x.stride(0), columns, parts,
        BLOCK=_BLOCK_BACKWARD, CENTRED=centred, num_warps=4,
    )  # fmt: skip
    launch(
        norm_parts_backward_kernel, (parts * groups,), dx, partial, row_sums, dy, dsum, x, weight, stats, x.stride(0), rows, columns, parts,
        BLOCK=_BLOCK_BACKWARD, PARTS=next_power_of_2(parts), CENTRED=centred, num_warps=8,
    )  # fmt: skip
    return dx, None if partial is None else sum_partials(partial, sums_dtype(x, weight))
