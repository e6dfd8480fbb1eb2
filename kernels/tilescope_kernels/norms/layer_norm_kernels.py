"""Triton kernels of ``layer_norm``: forward for rows in one block and in pieces, and backward."""

from __future__ import annotations

import triton
import triton.language as tl

from tilescope_kernels._shared.row_tiles import aligned, columns_of, load_piece, load_pieces, narrow, store_piece

#: Scale of elements in a row sum, which else might overflow fp32. A power of two changes no bit of the mantissa.
SMALLER = tl.constexpr(2.0**-17)


@triton.jit
def _nothing(largest, least):
    """0, or NaN if largest - least overflows fp32, as then PyTorch's mean is NaN."""
    return (largest - least) * 0.0


@triton.jit
def zero_beyond(
    x, columns, PIECE: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr
):
    """Zero a piece beyond its row's end."""
    if not WHOLE and PIECE + 1 == STEPS:
        x = tl.where(columns_of(PIECE, LANES, WIDTH) < columns, x, 0.0)
    return x


@triton.jit
def layer_norm_kernel(
    y_ptr, stats_ptr, x_ptr, weight_ptr, bias_ptr, x_stride, rows, columns, eps,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """``ROWS`` rows per program. ``stats``, each row's mean and 1 / standard deviation, ``weight`` and ``bias`` may be None.

    ``columns`` and ``x_stride`` are multiples of ``VECTOR``. ``EARLY`` loads weight and bias with the rows, not from L1 after the
    reductions, where they take no registers while the rows are in flight.
    """
    x_stride = aligned(x_stride, VECTOR)
    columns = aligned(columns, VECTOR)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    valid = column < columns
    mask = (row < rows) & valid
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0)
    if weight_ptr is not None and EARLY:
        weight = tl.load(weight_ptr + column, mask=valid, eviction_policy="evict_last")
    if bias_ptr is not None and EARLY:
        bias = tl.load(bias_ptr + column, mask=valid, eviction_policy="evict_last")
    mean = tl.sum(x.to(tl.float32) * SMALLER, axis=1, keep_dims=True) / (columns * SMALLER)
    centred = tl.where(valid, x.to(tl.float32) - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, axis=1, keep_dims=True) / columns + eps)
    if tl.min(rstd) == 0.0:
        largest = tl.max(tl.where(valid, x.to(tl.float32), float("-inf")), axis=1, keep_dims=True)
        least = tl.min(tl.where(valid, x.to(tl.float32), float("inf")), axis=1, keep_dims=True)
        mean += _nothing(largest, least)
    # The row stays in 16 bits across the reduction and is centred again. The expression is negated, or the compiler would
    # reuse the fp32 values from above, which halve the occupancy.
    y = (mean - x.to(tl.float32)) * -rstd
    if weight_ptr is not None:
        if not EARLY:
            weight = tl.load(weight_ptr + column, mask=valid, eviction_policy="evict_last")
        y *= weight.to(tl.float32)
    if bias_ptr is not None:
        if not EARLY:
            bias = tl.load(bias_ptr + column, mask=valid, eviction_policy="evict_last")
        y += bias.to(tl.float32)
    tl.store(y_ptr + row * columns + column, y.to(y_ptr.dtype.element_ty), mask=mask)
    if stats_ptr is not None:
        tl.store(stats_ptr + 2 * row, mean, mask=row < rows)
        tl.store(stats_ptr + 2 * row + 1, rstd, mask=row < rows)


@triton.jit
def _add(total, squares, other_total, other_squares):
    return total + other_total, squares + other_squares


@triton.jit
def layer_norm_pieces_kernel(
    y_ptr, stats_ptr, x_ptr, weight_ptr, bias_ptr, x_stride, columns, eps,
    LANES: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr, ONCE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One row per program, in pieces (``row_tiles``). ``EARLY`` loads weight and bias with the row, not from L1 after its reduction.

    ``ONCE`` takes a single reduction over threads, of the differences from one element and of their squares, which is accurate
    enough for 16-bit rows. Otherwise the mean is reduced first.
    """
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * aligned(x_stride, WIDTH)
    y_ptr += row * aligned(columns, WIDTH)
    # The median of three elements, to avoid an outlier: far from the mean, the subtraction below would cancel the variance.
    first = tl.load(x_ptr).to(tl.float32)
    second = tl.load(x_ptr + 1).to(tl.float32)
    third = tl.load(x_ptr + 2).to(tl.float32)
    near = tl.maximum(tl.minimum(first, second), tl.minimum(tl.maximum(first, second), third))
    held = load_pieces(x_ptr, columns, 0.0, LANES, WIDTH, STEPS, WHOLE)
    if weight_ptr is not None and EARLY:
        weight = load_pieces(weight_ptr, columns, 0.0, LANES, WIDTH, STEPS, WHOLE, KEEP=True)
    if bias_ptr is not None and EARLY:
        bias = load_pieces(bias_ptr, columns, 0.0, LANES, WIDTH, STEPS, WHOLE, KEEP=True)
    if not ONCE:
        total = tl.zeros((LANES,), tl.float32)
        for i in tl.static_range(STEPS):
            apart = zero_beyond(held[i].to(tl.float32) - near, columns, i, LANES, WIDTH, STEPS, WHOLE)
            total += tl.sum(apart * SMALLER, axis=1)
        near += tl.sum(total, axis=0) / (columns * SMALLER)
    total = tl.zeros((LANES,), tl.float32)
    squares = tl.zeros((LANES,), tl.float32)
    for i in tl.static_range(STEPS):
        apart = zero_beyond(held[i].to(tl.float32) - near, columns, i, LANES, WIDTH, STEPS, WHOLE)
        total += tl.sum(apart * SMALLER, axis=1)
        squares += tl.sum(apart * apart, axis=1)
    total, squares = tl.reduce((total, squares), 0, _add)
    away = total / (columns * SMALLER)
    # Infinite squares stay infinite: inf - inf would be NaN.
    rstd = tl.rsqrt(tl.where(squares == float("inf"), squares, squares / columns - away * away) + eps)
    mean = near + away
    if rstd == 0.0:
        # Read the row again: this is rare, and keeping it would take registers.
        largest = tl.full((LANES,), float("-inf"), tl.float32)
        least = tl.full((LANES,), float("inf"), tl.float32)
        for start in range(0, columns, LANES * WIDTH):
            column = start + columns_of(0, LANES, WIDTH)
            x = tl.load(x_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
            x = tl.where(column < columns, x, near)
            largest = tl.maximum(largest, tl.max(x, axis=1))
            least = tl.minimum(least, tl.min(x, axis=1))
        mean += _nothing(tl.max(largest, axis=0), tl.min(least, axis=0))
    # Where keeping the row in 16 bits lets another program fit the SM: not at 16 warps with 32 elements per thread.
    LONG: tl.constexpr = STEPS * WIDTH >= (33 if LANES > 256 else 32)  # noqa: SIM300
    for i in tl.static_range(STEPS):
        x = narrow(held[i], columns) if LONG else held[i]
        y = (x.to(tl.float32) - mean) * rstd
        if weight_ptr is not None:
            part = (
                weight[i] if EARLY else load_piece(weight_ptr, columns, 0.0, i, LANES, WIDTH, STEPS, WHOLE, KEEP=True)
            )
            y *= part.to(tl.float32)
        if bias_ptr is not None:
            part = bias[i] if EARLY else load_piece(bias_ptr, columns, 0.0, i, LANES, WIDTH, STEPS, WHOLE, KEEP=True)
            y += part.to(tl.float32)
        store_piece(y_ptr, y, columns, i, LANES, WIDTH, STEPS, WHOLE)
    if stats_ptr is not None:
        # Adjacent, in one sector per row: separate arrays are slower when L2 is full of dirty lines.
        tl.store(stats_ptr + 2 * row, mean)
        tl.store(stats_ptr + 2 * row + 1, rstd)


#: What a backward program keeps in registers across a row's reduction, beside its sums for dW: nothing of the row, which is
#: read again; the row, in 16 bits; or the row, the weight and sums for dB.
_NOTHING, _ROW, _ALL = (tl.constexpr(kept) for kept in range(3))


@triton.jit
def _weighted(dy, weight_ptr, column, mask, POLICY: tl.constexpr):
    g = dy.to(tl.float32)
    if weight_ptr is not None:
        g *= tl.load(weight_ptr + column, mask=mask, other=0.0, eviction_policy=POLICY).to(tl.float32)
    return g


@triton.jit(do_not_specialize=["rows"])
def layer_norm_backward_kernel(
    dx_ptr, partial_ptr, dy_ptr, x_ptr, weight_ptr, stats_ptr, x_stride, rows, columns,
    BLOCK: tl.constexpr, KEEP: tl.constexpr, STAGES: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """``dx`` of rows ``program, program + programs, ...`` and, unless ``partial`` is None, their dW and (with ``_ALL``) dB.

    With n = (x - mean) * rstd and g = dy * weight: dx = rstd * (g - mean(g) - n * mean(g * n)), dW = sum of dy * n and
    dB = sum of dy over rows (Ba, Kiros and Hinton, arXiv:1607.06450). ``columns`` and ``x_stride`` are multiples of ``VECTOR``.
    """
    x_stride = aligned(x_stride, VECTOR)
    columns = aligned(columns, VECTOR)
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    dw = tl.zeros((BLOCK,), tl.float32)
    db = tl.zeros((BLOCK,), tl.float32)
    if weight_ptr is not None and KEEP == _ALL:
        weight = tl.load(weight_ptr + column, mask=mask, other=0.0, eviction_policy="evict_last")
    for row in tl.range(program, rows, programs, num_stages=STAGES):
        start = row + tl.full((), 0, tl.int64)  # int64; the interpreter's loop index has no .to()
        x_row = x_ptr + start * x_stride + column
        dy_row = dy_ptr + start * columns + column
        x = tl.load(x_row, mask=mask, other=0.0)
        dy = tl.load(dy_row, mask=mask, other=0.0)
        mean = tl.load(stats_ptr + 2 * start)
        rstd = tl.load(stats_ptr + 2 * start + 1)
        if KEEP != _ALL:
            g = _weighted(dy, weight_ptr, column, mask, "evict_last")
        else:
            g = dy.to(tl.float32)
            if weight_ptr is not None:
                g *= weight.to(tl.float32)
        mean_g = tl.sum(g, axis=0) / columns
        if KEEP == _ROW:
            # Other products than below, or the compiler would keep their fp32 values, which do not fit in registers. The
            # difference cancels less than rounding x to 16 bits has lost.
            inner = (tl.sum(g * x.to(tl.float32), axis=0) / columns - mean * mean_g) * rstd
            normed = x.to(tl.float32) * rstd - mean * rstd
        else:
            normed = (x.to(tl.float32) - mean) * rstd
            inner = tl.sum(g * normed, axis=0) / columns
        if KEEP == _NOTHING:
            # From L1. The other eviction policy keeps the compiler from merging these loads with those above.
            x = tl.load(x_row, mask=mask, other=0.0, eviction_policy="evict_first")
            dy = tl.load(dy_row, mask=mask, other=0.0, eviction_policy="evict_first")
            normed = (x.to(tl.float32) - mean) * rstd
        if KEEP != _ALL:
            g = _weighted(dy, weight_ptr, column, mask, "")
        # Padding lanes have dy = 0 and add nothing. The compiler removes sums that are not stored.
        dw += dy.to(tl.float32) * normed
        db += dy.to(tl.float32)
        dx = (g - (mean_g + normed * inner)) * rstd
        tl.store(dx_ptr + start * columns + column, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    if partial_ptr is not None:
        partial_ptr += program.to(tl.int64) * columns
        tl.store(partial_ptr + column, dw, mask=mask)
        if KEEP == _ALL:
            tl.store(partial_ptr + programs.to(tl.int64) * columns + column, db, mask=mask)


@triton.jit
def column_sums_kernel(partial_ptr, x_ptr, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Partial sums of ``BLOCK`` columns, over every ``num_programs(1)``-th tile of ``ROWS`` rows of a contiguous matrix."""
    slab = tl.program_id(1)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(slab * ROWS, rows, tl.num_programs(1) * ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        mask = (row < rows) & (column < columns)
        total += tl.load(x_ptr + row.to(tl.int64) * columns + column, mask=mask, other=0.0).to(tl.float32)
    out = partial_ptr + slab.to(tl.int64) * columns + column
    tl.store(out, tl.sum(total, axis=0, keep_dims=True), mask=column < columns)


@triton.jit(do_not_specialize=["rows"])
def layer_norm_backward_pieces_kernel(
    dx_ptr, partial_ptr, dy_ptr, x_ptr, weight_ptr, stats_ptr, x_stride, rows, columns,
    LANES: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """As ``layer_norm_backward_kernel``, with rows in pieces, in 16 bits, and sums for dW and dB in registers."""
    program = tl.program_id(0)
    dw = ()
    db = ()
    for _ in tl.static_range(STEPS):
        dw += (tl.zeros((LANES, WIDTH), tl.float32),)
        db += (tl.zeros((LANES, WIDTH), tl.float32),)
    for row in tl.range(program, rows, tl.num_programs(0), num_stages=STAGES):
        start = row + tl.full((), 0, tl.int64)  # int64; the interpreter's loop index has no .to()
        own = start * aligned(columns, WIDTH)
        x = load_pieces(x_ptr + start * aligned(x_stride, WIDTH), columns, 0.0, LANES, WIDTH, STEPS, WHOLE)
        dy = load_pieces(dy_ptr + own, columns, 0.0, LANES, WIDTH, STEPS, WHOLE)
        mean = tl.load(stats_ptr + 2 * start)
        rstd = tl.load(stats_ptr + 2 * start + 1)
        sums = tl.zeros((LANES,), tl.float32)
        products = tl.zeros((LANES,), tl.float32)
        for i in tl.static_range(STEPS):
            g = dy[i].to(tl.float32)
            if weight_ptr is not None:
                g *= load_piece(weight_ptr, columns, 0.0, i, LANES, WIDTH, STEPS, WHOLE, KEEP=True).to(tl.float32)
            sums += tl.sum(g, axis=1)
            products += tl.sum(g * x[i].to(tl.float32), axis=1)
        sum_g, inner = tl.reduce((sums, products), 0, _add)
        # The difference cancels less than rounding x to 16 bits has lost.
        inner = (inner - mean * sum_g) / columns * rstd * rstd
        mean_g = sum_g / columns * rstd
        more_w = ()
        more_b = ()
        for i in tl.static_range(STEPS):
            g = narrow(dy[i], columns).to(tl.float32)
            normed = narrow(x[i], columns).to(tl.float32) * rstd - mean * rstd
            # Padding lanes have dy = 0 and add nothing.
            more_w += (dw[i] + g * normed,)
            more_b += (db[i] + g,)
            if weight_ptr is not None:
                g *= load_piece(weight_ptr, columns, 0.0, i, LANES, WIDTH, STEPS, WHOLE).to(tl.float32)
            store_piece(dx_ptr + own, g * rstd - (mean_g + normed * inner), columns, i, LANES, WIDTH, STEPS, WHOLE)
        dw = more_w
        db = more_b
    partial_ptr += program.to(tl.int64) * aligned(columns, WIDTH)
    of_db = tl.num_programs(0).to(tl.int64) * aligned(columns, WIDTH)
    for i in tl.static_range(STEPS):
        store_piece(partial_ptr, dw[i], columns, i, LANES, WIDTH, STEPS, WHOLE)
        store_piece(partial_ptr + of_db, db[i], columns, i, LANES, WIDTH, STEPS, WHOLE)
