"""The norms for rows that need another kernel than the norm's own: backward for short rows, and for very long ones.

The latency of each short row's loads would be exposed, so a program works on many at once. A row too long for one program is split
into parts in two launches: one reduces each part, the other reads it again and uses the sums of all parts of its row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.launching import cdiv, launch, multiprocessors, next_power_of_2
from tilescope_kernels._shared.row_tiles import aligned, vector
from tilescope_kernels._shared.weight_gradients import sum_partials, sums_dtype

#: Most columns of one program, whose fp32 sums for dW then take a quarter of an SM's registers.
SUMMED = 16384
#: Columns of a part.
_BLOCK = 4096
#: Most columns of rows that are not 16-byte aligned.
_MOST_UNALIGNED = 512
#: Elements of a tile, programs per SM, warps, and pipeline stages.
_PLAN = (2048, 4, 4, 3)


@triton.jit(do_not_specialize=["rows"])
def norm_short_rows_backward_kernel(
    dx_ptr, partial_ptr, dy_ptr, x_ptr, weight_ptr, stats_ptr, x_stride, rows, columns,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, VECTOR: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    """``dx`` of every ``programs``-th tile of ``ROWS`` rows and, unless ``partial`` is None, their share of dW and dB.

    ``CENTRED`` is for LayerNorm, whose ``stats`` are each row's mean and 1 / standard deviation. RMSNorm has 1 / RMS and no
    dB. With n = (x - mean) * rstd and g = dy * weight: dx = rstd * (g - mean(g) - n * mean(g * n)), dW = sum of dy * n and
    dB = sum of dy over rows. ``weight`` may be None. ``columns`` and ``x_stride`` are multiples of ``VECTOR``.
    """
    x_stride = aligned(x_stride, VECTOR)
    columns = aligned(columns, VECTOR)
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)[None, :]
    inside = column < columns
    dw = tl.zeros((ROWS, BLOCK), tl.float32)
    db = tl.zeros((ROWS, BLOCK), tl.float32)
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    for tile in tl.range(program, tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = tile * ROWS + tl.arange(0, ROWS)[:, None]
        start = row.to(tl.int64)
        exists = row < rows
        mask = exists & inside
        # Padding lanes have dy = 0 and add nothing.
        x = tl.load(x_ptr + start * x_stride + column, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + start * columns + column, mask=mask, other=0.0).to(tl.float32)
        if CENTRED:
            x -= tl.load(stats_ptr + 2 * start, mask=exists, other=0.0)
            rstd = tl.load(stats_ptr + 2 * start + 1, mask=exists, other=0.0)
        else:
            rstd = tl.load(stats_ptr + start, mask=exists, other=0.0)
        normed = x * rstd
        g = dy
        if weight_ptr is not None:
            g *= weight
        dx = g - normed * (tl.sum(g * normed, axis=1, keep_dims=True) / columns)
        if CENTRED:
            dx -= tl.sum(g, axis=1, keep_dims=True) / columns
            db += dy
        dw += dy * normed
        tl.store(dx_ptr + start * columns + column, (dx * rstd).to(dx_ptr.dtype.element_ty), mask=mask)
    if partial_ptr is not None:
        place = program.to(tl.int64) * columns + tl.arange(0, BLOCK)
        valid = tl.arange(0, BLOCK) < columns
        tl.store(partial_ptr + place, tl.sum(dw, axis=0), mask=valid)
        if CENTRED:
            tl.store(partial_ptr + tl.num_programs(0).to(tl.int64) * columns + place, tl.sum(db, axis=0), mask=valid)


def _serves_short_rows(x: torch.Tensor, most: int) -> bool:
    """Whether rows of ``x`` should share a program. 16-byte aligned rows should up to ``most`` columns."""
    whole = x.shape[1] * x.element_size() % 16 == x.stride(0) * x.element_size() % 16 == 0
    return x.shape[1] <= (most if whole else _MOST_UNALIGNED)


def _backward_of_short_rows(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, stats: torch.Tensor, sums: bool, centred: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """dx and, if ``sums``, dW and (if ``centred``) dB as rows of one tensor."""
    rows, columns = x.shape
    elements, programs, warps, stages = _PLAN
    block = next_power_of_2(columns)
    tile = max(1, min(elements // block, next_power_of_2(rows)))
    programs = min(cdiv(rows, tile), programs * multiprocessors(x))
    dx = x.new_empty(rows, columns)
    partial = x.new_empty((1 + centred, programs, columns), dtype=torch.float32) if sums else None
    launch(
        norm_short_rows_backward_kernel, (programs,),
        dx, partial, dy, x, weight, stats, x.stride(0), rows, columns,
        ROWS=tile, BLOCK=block, STAGES=stages, VECTOR=vector(x), CENTRED=centred, num_warps=warps,
    )  # fmt: skip
    return dx, None if partial is None else sum_partials(partial, sums_dtype(x, weight))


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
    sums_ptr, total_ptr, x_ptr, residual_ptr, x_stride, residual_stride, columns, parts,
    BLOCK: tl.constexpr, CENTRED: tl.constexpr,
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
    sums_ptr, dy_ptr, x_ptr, weight_ptr, stats_ptr, x_stride, columns, parts,
    BLOCK: tl.constexpr, CENTRED: tl.constexpr,
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

    With n = (x - mean) * rstd and g = dy * weight: dx = rstd * (g - mean(g) - n * mean(g * n)) + dsum, dW = sum of dy * n
    and dB = sum of dy over rows. Without ``CENTRED``, the means of x and g are 0 and there is no dB. ``dsum`` and ``weight`` may
    be None.
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
        norm_parts_kernel, (parts * rows,),
        y, stats, sums, whole, weight, bias, whole.stride(0), columns, parts, eps,
        BLOCK=_BLOCK, PARTS=next_power_of_2(parts), CENTRED=centred, num_warps=8,
    )  # fmt: skip


def _backward_in_parts(
    dy: torch.Tensor, dsum: torch.Tensor | None, x: torch.Tensor, weight: torch.Tensor | None, stats: torch.Tensor,
    sums: bool, *, centred: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """dx and, if ``sums``, dW and (if ``centred``) dB as rows of one tensor."""
    rows, columns = x.shape
    dx = x.new_empty(rows, columns)
    parts = cdiv(columns, _BLOCK)
    groups = min(rows, max(1, 4 * multiprocessors(x) // parts))
    partial = torch.empty((1 + centred, groups, columns), device=x.device) if sums else None
    row_sums = torch.empty((rows, parts, 2), device=x.device)
    launch(
        norm_part_inners_kernel, (parts * rows,),
        row_sums, dy, x, weight, stats, x.stride(0), columns, parts,
        BLOCK=_BLOCK, CENTRED=centred, num_warps=8,
    )  # fmt: skip
    launch(
        norm_parts_backward_kernel, (parts * groups,),
        dx, partial, row_sums, dy, dsum, x, weight, stats, x.stride(0), rows, columns, parts,
        BLOCK=_BLOCK, PARTS=next_power_of_2(parts), CENTRED=centred, num_warps=8,
    )  # fmt: skip
    return dx, None if partial is None else sum_partials(partial, sums_dtype(x, weight))


def backward_of_special_rows(
    dy: torch.Tensor, dsum: torch.Tensor | None, x: torch.Tensor, weight: torch.Tensor | None, stats: torch.Tensor,
    sums: bool, config: str, *, short: int, centred: bool,
) -> tuple[torch.Tensor, torch.Tensor | None] | None:  # fmt: skip
    """dx and, if ``sums``, dW and (if ``centred``) dB as rows of one tensor; None for rows of the norm's own kernel.

    ``short``: most columns of rows that share a program. A ``config`` selects the norm's own kernel, except for rows that are
    too long for it.
    """
    if not config and dsum is None and _serves_short_rows(x, short):
        return _backward_of_short_rows(dy, x, weight, stats, sums, centred=centred)
    if next_power_of_2(x.shape[1]) > SUMMED:
        return _backward_in_parts(dy, dsum, x, weight, stats, sums, centred=centred)
    return None
