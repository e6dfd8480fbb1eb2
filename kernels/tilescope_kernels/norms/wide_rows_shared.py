"""The norms' Gluon kernels for rows split into parts, which stay in a ring in shared memory (``row_ring``).

They compute the same as ``norm_parts_kernel`` and ``norm_parts_backward_kernel``.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from tilescope_kernels._shared.row_ring import add, ask_sums, await_sums, copy_part, place_of, publish_sums


@gluon.jit
def _statistics(stats_ptr, row, CENTRED: gl.constexpr):
    if CENTRED:
        mean = gl.load(stats_ptr + 2 * row.to(gl.int64))
        rstd = gl.load(stats_ptr + 2 * row.to(gl.int64) + 1)
    else:
        rstd = gl.load(stats_ptr + row)
        mean = rstd * 0.0
    return mean, rstd


@gluon.jit
def _merge(count, mean, squares, other_count, other_mean, other_squares):
    """Merge count, mean and sum of squared deviations of two sets (Chan, Golub and LeVeque, 1979)."""
    both = count + other_count
    away = other_mean - mean
    share = other_count / gl.maximum(both, 1.0)
    between = gl.where((count == 0.0) | (other_count == 0.0), 0.0, away * away * count * share)
    merged = gl.where(count == 0.0, other_mean, gl.where(other_count == 0.0, mean, mean + away * share))
    return both, merged, squares + other_squares + between


@gluon.jit
def _row_of(xs, residuals, slot, DTYPE: gl.constexpr, LAYOUT: gl.constexpr):
    """A part of a row in fp32. With a residual it is the sum, rounded to ``DTYPE`` as it is stored."""
    x = xs.index(slot).load(LAYOUT).to(gl.float32)
    if residuals is not None:
        x = (x + residuals.index(slot).load(LAYOUT).to(gl.float32)).to(DTYPE).to(gl.float32)
    return x


@gluon.jit
def _sum_up(words_ptr, x, valid, share, WHOLE: gl.constexpr, CENTRED: gl.constexpr):
    """Publish a part's mean and sum of squared deviations, which a large mean does not cancel.

    The mean is NaN if differences overflow fp32, as then PyTorch's is.
    """
    mean = share * 0.0
    if CENTRED:
        # Scaled before the sum, which might overflow fp32 otherwise.
        mean = gl.sum(x * share, 0)
        x -= mean
        if not WHOLE:
            x = gl.where(valid, x, 0.0)
    squares = gl.sum(x * x, 0)
    if CENTRED:  # noqa: SIM102 - one is known when compiling, the other is not
        if squares == float("inf"):
            mean += (gl.max(x, 0) + gl.max(-x, 0)) * 0.0
    publish_sums(words_ptr, mean, squares)


@gluon.jit
def _moments(means, squares, columns, parts, BLOCK: gl.constexpr, CENTRED: gl.constexpr, LAYOUT: gl.constexpr):
    """A row's mean and variance, or 0 and the mean square, from its parts' sums."""
    mean = 0.0
    if CENTRED:
        part = gl.arange(0, means.shape[0], layout=LAYOUT)
        count = gl.where(part < parts, gl.minimum(BLOCK, columns - part * BLOCK), 0).to(gl.float32)
        count, mean, total = gl.reduce((count, means, squares), 0, _merge)
    else:
        total = gl.sum(squares, 0)
    return mean, total / columns


@gluon.jit
def _copy_row(xs, residuals, slot, x_row, residual_row, inside, wanted, WHOLE: gl.constexpr, LAYOUT: gl.constexpr):
    copy_part(xs.index(slot), x_row, inside, wanted, WHOLE, LAYOUT)
    if residuals is not None:
        copy_part(residuals.index(slot), residual_row, inside, wanted, WHOLE, LAYOUT)
    async_copy.commit_group()


@gluon.jit
def _store_statistics(stats_ptr, row, mean, rstd, first, CENTRED: gl.constexpr):
    if stats_ptr is not None:
        if CENTRED:
            gl.store(stats_ptr + 2 * row, mean, mask=first)
            gl.store(stats_ptr + 2 * row + 1, rstd, mask=first)
        else:
            gl.store(stats_ptr + row, rstd, mask=first)


@gluon.jit
def _affine(y, weight, bias):
    if weight is not None:
        y *= weight.to(gl.float32)
    if bias is not None:
        y += bias.to(gl.float32)
    return y


@gluon.jit
def _load(ptr, offsets, mask):
    values = None
    if ptr is not None:
        values = gl.load(ptr + offsets, mask=mask)
    return values


@gluon.jit
def norm_parts_shared_kernel(
    y_ptr, sum_ptr, stats_ptr, words_ptr, x_ptr, residual_ptr, weight_ptr, bias_ptr, x_stride, residual_stride,
    rows, columns, parts, eps,
    BLOCK: gl.constexpr, WIDTH: gl.constexpr, WHOLE: gl.constexpr, CENTRED: gl.constexpr, AHEAD: gl.constexpr,
    LAG: gl.constexpr, LANES: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """A part of rows ``group, group + groups, ...``. ``AHEAD`` rows are prefetched; ``LAG`` rows wait for their other parts' sums.

    ``WHOLE`` parts need no mask. ``columns`` and strides are multiples of 16.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([WIDTH], [32], [num_warps], [0])
    EACH: gl.constexpr = gl.BlockedLayout([1], [32], [num_warps], [0])
    SHARED: gl.constexpr = gl.SwizzledSharedLayout(WIDTH, 1, 1, [0])
    SLOTS: gl.constexpr = AHEAD + 1 + LAG
    DTYPE: gl.constexpr = y_ptr.dtype.element_ty
    xs = gl.allocate_shared_memory(x_ptr.dtype.element_ty, [SLOTS, BLOCK], SHARED)
    residuals = None
    residual_row = None
    if residual_ptr is not None:
        residuals = gl.allocate_shared_memory(residual_ptr.dtype.element_ty, [SLOTS, BLOCK], SHARED)
    part, group, groups = place_of(parts)
    first = part * BLOCK
    inside = columns - first
    column = gl.arange(0, BLOCK, layout=LAYOUT)
    valid = column < inside
    mask = None if WHOLE else valid
    share = 1.0 / gl.minimum(BLOCK, inside)
    weight = _load(weight_ptr, first + column, mask)
    bias = _load(bias_ptr, first + column, mask)
    for i in gl.static_range(AHEAD):
        row = (group + i * groups).to(gl.int64)
        if residual_ptr is not None:
            residual_row = residual_ptr + row * residual_stride + first
        _copy_row(xs, residuals, i, x_ptr + row * x_stride + first, residual_row, inside, row < rows, WHOLE, LAYOUT)
    slot = group * 0
    for row in range(group, rows + LAG * groups, groups):
        async_copy.wait_group(AHEAD - 1)
        late = row - LAG * groups
        place, word = ask_sums(words_ptr, parts, late, late >= 0, LANES, EACH)
        ahead = (row + AHEAD * groups).to(gl.int64)
        x_row = x_ptr + ahead * x_stride + first
        if residual_ptr is not None:
            residual_row = residual_ptr + ahead * residual_stride + first
        _copy_row(xs, residuals, (slot + AHEAD) % SLOTS, x_row, residual_row, inside, ahead < rows, WHOLE, LAYOUT)
        if row < rows:
            x = _row_of(xs, residuals, slot, DTYPE, LAYOUT)
            if not WHOLE:  # masked elements were not copied
                x = gl.where(valid, x, 0.0)
            if residual_ptr is not None:
                gl.store(sum_ptr + row.to(gl.int64) * columns + first + column, x.to(DTYPE), mask=mask)
            _sum_up(words_ptr + row.to(gl.int64) * parts + part, x, valid, share, WHOLE, CENTRED)
        if late >= 0:
            means, squares = await_sums(place, word)
            mean, variance = _moments(means, squares, columns, parts, BLOCK, CENTRED, EACH)
            rstd = gl.rsqrt(variance + eps)
            y = (_row_of(xs, residuals, (slot + AHEAD + 1) % SLOTS, DTYPE, LAYOUT) - mean) * rstd
            y = _affine(y, weight, bias)
            gl.store(y_ptr + late.to(gl.int64) * columns + first + column, y.to(DTYPE), mask=mask)
            _store_statistics(stats_ptr, late.to(gl.int64), mean, rstd, part == 0, CENTRED)
        slot = (slot + 1) % SLOTS


@gluon.jit
def _weighted(dy, weight):
    g = dy
    if weight is not None:
        g = dy * weight.to(gl.float32)
    return g


@gluon.jit
def _both_sums(sums_g, sums_gx, CENTRED: gl.constexpr):
    """Sums of g (if ``CENTRED``, else 0) and of g * x."""
    if CENTRED:
        sum_g, sum_gx = gl.reduce((sums_g, sums_gx), 0, add)
    else:
        sum_gx = gl.sum(sums_gx, 0)
        sum_g = sum_gx * 0.0
    return sum_g, sum_gx


@gluon.jit
def _both(xs, dys, slot, LAYOUT: gl.constexpr):
    return xs.index(slot).load(LAYOUT).to(gl.float32), dys.index(slot).load(LAYOUT).to(gl.float32)


@gluon.jit
def _sum_up_backward(words_ptr, x, g, valid, WHOLE: gl.constexpr, CENTRED: gl.constexpr):
    """Publish a part's sums of g and of g * x."""
    gx = g * x
    if not WHOLE:  # masked elements were not copied
        g = gl.where(valid, g, 0.0)
        gx = gl.where(valid, gx, 0.0)
    sum_g, sum_gx = _both_sums(g, gx, CENTRED)
    publish_sums(words_ptr, sum_g, sum_gx)


@gluon.jit
def _gradient(g, n, dsum, rstd, inner, mean_g, CENTRED: gl.constexpr):
    """``(g - n * mean(g * n) - mean(g)) * rstd + dsum``. ``inner`` and ``mean_g`` are multiplied by rstd already."""
    dx = g * rstd - n * inner
    if CENTRED:
        dx -= mean_g
    if dsum is not None:
        dx += dsum.to(gl.float32)
    return dx


@gluon.jit
def _store_sums(partial_ptr, dw, db, groups, columns, column, mask, CENTRED: gl.constexpr):
    if partial_ptr is not None:
        gl.store(partial_ptr + column, dw, mask=mask)
        if CENTRED:
            gl.store(partial_ptr + groups.to(gl.int64) * columns + column, db, mask=mask)


@gluon.jit
def norm_parts_backward_shared_kernel(
    dx_ptr, partial_ptr, words_ptr, dy_ptr, dsum_ptr, x_ptr, weight_ptr, stats_ptr, x_stride, rows, columns, parts,
    BLOCK: gl.constexpr, WIDTH: gl.constexpr, WHOLE: gl.constexpr, CENTRED: gl.constexpr, AHEAD: gl.constexpr,
    LAG: gl.constexpr, LANES: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """A part of rows ``group, group + groups, ...``. ``AHEAD`` rows are prefetched; ``LAG`` rows wait for their other parts' sums.

    ``WHOLE`` parts need no mask. ``columns`` and ``x_stride`` are multiples of 16.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([WIDTH], [32], [num_warps], [0])
    EACH: gl.constexpr = gl.BlockedLayout([1], [32], [num_warps], [0])
    SHARED: gl.constexpr = gl.SwizzledSharedLayout(WIDTH, 1, 1, [0])
    SLOTS: gl.constexpr = AHEAD + 1 + LAG
    xs = gl.allocate_shared_memory(x_ptr.dtype.element_ty, [SLOTS, BLOCK], SHARED)
    dys = gl.allocate_shared_memory(dy_ptr.dtype.element_ty, [SLOTS, BLOCK], SHARED)
    part, group, groups = place_of(parts)
    first = part * BLOCK
    inside = columns - first
    column = gl.arange(0, BLOCK, layout=LAYOUT)
    valid = column < inside
    mask = None if WHOLE else valid
    weight = _load(weight_ptr, first + column, mask)
    dw = gl.zeros([BLOCK], gl.float32, LAYOUT)
    db = gl.zeros([BLOCK], gl.float32, LAYOUT)
    for i in gl.static_range(AHEAD):
        row = (group + i * groups).to(gl.int64)
        x_row, dy_row = x_ptr + row * x_stride + first, dy_ptr + row * columns + first
        _copy_row(xs, dys, i, x_row, dy_row, inside, row < rows, WHOLE, LAYOUT)
    slot = group * 0
    next_mean, _ = _statistics(stats_ptr, group, CENTRED)
    for row in range(group, rows + LAG * groups, groups):
        async_copy.wait_group(AHEAD - 1)
        late = row - LAG * groups
        place, word = ask_sums(words_ptr, parts, late, late >= 0, LANES, EACH)
        late_mean, late_rstd = _statistics(stats_ptr, gl.maximum(late, 0), CENTRED)
        mean = next_mean
        next_mean, _ = _statistics(stats_ptr, gl.minimum(row + groups, rows - 1), CENTRED)
        ahead = (row + AHEAD * groups).to(gl.int64)
        x_row, dy_row = x_ptr + ahead * x_stride + first, dy_ptr + ahead * columns + first
        _copy_row(xs, dys, (slot + AHEAD) % SLOTS, x_row, dy_row, inside, ahead < rows, WHOLE, LAYOUT)
        if row < rows:
            x, dy = _both(xs, dys, slot, LAYOUT)
            _sum_up_backward(
                words_ptr + row.to(gl.int64) * parts + part, x - mean, _weighted(dy, weight), valid, WHOLE, CENTRED
            )
        if late >= 0:
            start = late.to(gl.int64) * columns + first
            dsum = _load(dsum_ptr, start + column, mask)
            sums_g, sums_gx = await_sums(place, word)
            sum_g, sum_gx = _both_sums(sums_g, sums_gx, CENTRED)
            x, dy = _both(xs, dys, (slot + AHEAD + 1) % SLOTS, LAYOUT)
            n = x * late_rstd - late_mean * late_rstd
            dw += dy * n
            if CENTRED:
                db += dy
            inner, mean_g = sum_gx / columns * late_rstd * late_rstd, sum_g / columns * late_rstd
            dx = _gradient(_weighted(dy, weight), n, dsum, late_rstd, inner, mean_g, CENTRED)
            gl.store(dx_ptr + start + column, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        slot = (slot + 1) % SLOTS
    if partial_ptr is not None:
        partial_ptr += group.to(gl.int64) * columns + first
    _store_sums(partial_ptr, dw, db, groups, columns, column, mask, CENTRED)
