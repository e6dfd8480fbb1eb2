"""The norms with 16-bit rows in shared memory: backward, where sums for dW and dB fill the registers, and forward of rows that are not
16-byte aligned.

The kernels are in Gluon, which controls shared memory. In Triton the row competes with sums and weights for registers, and
LayerNorm's dB needs another pass over dy.

Rows that are not 16-byte aligned (``SKEWED``) are contiguous. Their pieces are of what aligned accesses cover, and a row's two ends
are held apart. ``programs`` is then a multiple of 8 or at least ``rows``, so that all rows of a program have the same misalignment.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from tilescope_kernels._shared.row_ring import add, begin_of, copy_part, ends_of, whole_part
from tilescope_kernels.norms.layer_norm_kernels import SMALLER

#: Elements in 16 bytes.
_WIDTH = gl.constexpr(8)


@gluon.jit
def _places(DTYPE: gl.constexpr, SLOTS: gl.constexpr, SIZE: gl.constexpr, CHUNK: gl.constexpr):
    """Shared memory for ``SLOTS`` rows of ``SIZE`` elements. Chunks have their own, or the compiler has each copy wait for the last."""
    SHARED: gl.constexpr = gl.SwizzledSharedLayout(_WIDTH, 1, 1, [0])
    places = ()
    for _ in gl.static_range((SIZE + CHUNK - 1) // CHUNK):
        places += (gl.allocate_shared_memory(DTYPE, [SLOTS, CHUNK], SHARED),)
    return places


@gluon.jit
def _copy_row(
    places,
    slot,
    ptr,
    length,
    wanted,
    SIZE: gl.constexpr,
    CHUNK: gl.constexpr,
    WHOLE: gl.constexpr,
    LAYOUT: gl.constexpr,
):
    """Start asynchronous copies of a row. Only its last chunk needs a mask, unless it is ``WHOLE``."""
    for i in gl.static_range(len(places)):
        place = places[i].index(slot)
        copy_part(
            place, ptr + i * CHUNK, length - i * CHUNK, wanted,
            (WHOLE or i < len(places) - 1) and (i + 1) * CHUNK <= SIZE, LAYOUT,
        )  # fmt: skip


@gluon.jit
def _piece(places, slot, i: gl.constexpr, PIECE: gl.constexpr, CHUNK: gl.constexpr, LAYOUT: gl.constexpr):
    place = places[i * PIECE // CHUNK].index(slot)
    return place.slice(i * PIECE % CHUNK, PIECE).load(LAYOUT).to(gl.float32)


@gluon.jit
def _column(i: gl.constexpr, PIECE: gl.constexpr, LAYOUT: gl.constexpr):
    return i * PIECE + gl.arange(0, PIECE, layout=LAYOUT)


@gluon.jit
def _row_sums(
    xs, dys, slot, weights, mean, length,
    PIECE: gl.constexpr, PIECES: gl.constexpr, CHUNK: gl.constexpr, WHOLE: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Row sums of g = dy * weight and of g * (x - mean), in one reduction over threads."""
    sum_g = gl.zeros([PIECE], gl.float32, LAYOUT)
    sum_gx = gl.zeros([PIECE], gl.float32, LAYOUT)
    for i in gl.static_range(PIECES):
        x = _piece(xs, slot, i, PIECE, CHUNK, LAYOUT) - mean
        g = _piece(dys, slot, i, PIECE, CHUNK, LAYOUT)
        if weights is not None:
            g *= _piece(weights, 0, i, PIECE, CHUNK, LAYOUT)
        if not WHOLE and i == PIECES - 1:  # masked elements were not copied
            valid = _column(i, PIECE, LAYOUT) < length
            x = gl.where(valid, x, 0.0)
            g = gl.where(valid, g, 0.0)
        sum_g += g
        sum_gx += g * x
    return gl.reduce((sum_g, sum_gx), 0, add)


@gluon.jit
def _store(
    ptr, values, i, length, PIECE: gl.constexpr, PIECES: gl.constexpr, WHOLE: gl.constexpr, LAYOUT: gl.constexpr
):
    column = _column(i, PIECE, LAYOUT)
    mask = None if WHOLE or i < PIECES - 1 else column < length
    gl.store(ptr + column, values.to(ptr.dtype.element_ty), mask=mask)


@gluon.jit
def _statistics(stats_ptr, row, CENTRED: gl.constexpr):
    """The mean (0 unless ``CENTRED``) and 1 / standard deviation of a row."""
    if CENTRED:
        stats_ptr += 2 * row.to(gl.int64)
        mean = gl.load(stats_ptr)
        rstd = gl.load(stats_ptr + 1)
    else:
        rstd = gl.load(stats_ptr + row)
        mean = rstd * 0.0
    return mean, rstd


@gluon.jit
def _ends(ptr, offsets, mask):
    """Elements of the ends of a row, in fp32; 0 where there are none."""
    return gl.load(ptr + offsets, mask=mask, other=0.0).to(gl.float32)


@gluon.jit(do_not_specialize=["rows"])
def norm_backward_shared_kernel(  # noqa: PLR0912, PLR0915 - each line twice, for the pieces and the ends
    dx_ptr, partial_ptr, dy_ptr, x_ptr, weight_ptr, stats_ptr, x_stride, partial_stride, rows, columns,
    PIECE: gl.constexpr, PIECES: gl.constexpr, CHUNK: gl.constexpr, WHOLE: gl.constexpr, CENTRED: gl.constexpr,
    SKEWED: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """``dx`` of rows ``program, program + programs, ...``, and their sums for dW and (if ``CENTRED``) dB in ``partial``.

    The formulas are those of ``norm_short_rows_backward_kernel``. A row has ``PIECES`` pieces of ``PIECE`` elements, 8 per
    thread, the last of which needs no mask if it is ``WHOLE``. The next row is copied, by ``CHUNK`` elements, while one is worked
    on. Beside the sums, registers hold one piece at a time. ``weight`` may be None.

    Sums of ``SKEWED`` rows lie so that stores are aligned: that of the first aligned element is the row's ninth.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([8], [32], [num_warps], [0])
    EACH: gl.constexpr = gl.BlockedLayout([1], [32], [num_warps], [0])
    SIZE: gl.constexpr = PIECES * PIECE
    xs = _places(x_ptr.dtype.element_ty, 2, SIZE, CHUNK)
    dys = _places(dy_ptr.dtype.element_ty, 2, SIZE, CHUNK)
    weights = None
    if weight_ptr is not None:
        weights = _places(weight_ptr.dtype.element_ty, 1, SIZE, CHUNK)
    program = gl.program_id(0)
    programs = gl.num_programs(0)
    before = 0
    length = columns
    if SKEWED:
        before, length = whole_part(program.to(gl.int64) * columns, columns, _WIDTH)
        end, at_end = ends_of(before, length, columns, _WIDTH, EACH)
        dw_end = gl.zeros([16], gl.float32, EACH)
        db_end = gl.zeros([16], gl.float32, EACH)
    if weight_ptr is not None and not SKEWED:
        _copy_row(weights, 0, weight_ptr, length, rows > 0, SIZE, CHUNK, WHOLE, LAYOUT)
    start = begin_of(program, columns, before, _WIDTH, SKEWED)
    x_start = start if SKEWED else program.to(gl.int64) * x_stride
    _copy_row(xs, 0, x_ptr + x_start, length, program < rows, SIZE, CHUNK, WHOLE, LAYOUT)
    _copy_row(dys, 0, dy_ptr + start, length, program < rows, SIZE, CHUNK, WHOLE, LAYOUT)
    async_copy.commit_group()
    if SKEWED:
        next_x_end, next_dy_end = _ends(x_ptr + start, end, at_end), _ends(dy_ptr + start, end, at_end)
        if weight_ptr is not None:
            weight_ptr += before
            weight_end = _ends(weight_ptr, end, at_end)
            # To where the elements will be that they multiply.
            for i in gl.static_range(PIECES):
                column = _column(i, PIECE, LAYOUT)
                weight = gl.load(weight_ptr + column, mask=column < length, other=0.0)
                weights[i * PIECE // CHUNK].index(0).slice(i * PIECE % CHUNK, PIECE).store(weight)
    dw = ()
    db = ()
    for _ in gl.static_range(PIECES):
        dw += (gl.zeros([PIECE], gl.float32, LAYOUT),)
        db += (gl.zeros([PIECE], gl.float32, LAYOUT),)
    slot = program * 0
    mean, rstd = _statistics(stats_ptr, program, CENTRED)
    for row in range(program, rows, programs):
        async_copy.wait_group(0)
        ahead = row + programs
        start = begin_of(ahead, columns, before, _WIDTH, SKEWED)
        x_start = start if SKEWED else ahead.to(gl.int64) * x_stride
        _copy_row(xs, 1 - slot, x_ptr + x_start, length, ahead < rows, SIZE, CHUNK, WHOLE, LAYOUT)
        _copy_row(dys, 1 - slot, dy_ptr + start, length, ahead < rows, SIZE, CHUNK, WHOLE, LAYOUT)
        async_copy.commit_group()
        next_mean, next_rstd = _statistics(stats_ptr, gl.minimum(ahead, rows - 1), CENTRED)
        sum_g, sum_gx = _row_sums(xs, dys, slot, weights, mean, length, PIECE, PIECES, CHUNK, WHOLE, LAYOUT)
        if SKEWED:
            x_end = next_x_end
            dy_end = next_dy_end
            wanted = at_end & (ahead < rows)
            next_x_end, next_dy_end = _ends(x_ptr + start, end, wanted), _ends(dy_ptr + start, end, wanted)
            g_end = dy_end
            if weight_ptr is not None:
                g_end *= weight_end
            sum_g_end, sum_gx_end = gl.reduce((g_end, g_end * (x_end - mean)), 0, add)
            sum_g += sum_g_end
            sum_gx += sum_gx_end
        # dx = g * rstd - (n * inner + mean_g)
        mean_g = sum_g / columns * rstd if CENTRED else 0.0
        inner = sum_gx / columns * rstd * rstd
        dx_row = dx_ptr + begin_of(row, columns, before, _WIDTH, SKEWED)
        more_dw = ()
        more_db = ()
        for i in gl.static_range(PIECES):
            n = _piece(xs, slot, i, PIECE, CHUNK, LAYOUT) * rstd - mean * rstd
            dy = _piece(dys, slot, i, PIECE, CHUNK, LAYOUT)
            more_dw += (dw[i] + dy * n,)
            more_db += (db[i] + dy,)
            if weight_ptr is not None:
                dy *= _piece(weights, 0, i, PIECE, CHUNK, LAYOUT)
            _store(dx_row, dy * rstd - (n * inner + mean_g), i, length, PIECE, PIECES, WHOLE, LAYOUT)
        if SKEWED:
            n = (x_end - mean) * rstd
            dw_end += dy_end * n
            db_end += dy_end
            dx_end = g_end * rstd - (n * inner + mean_g)
            gl.store(dx_row + end, dx_end.to(dx_ptr.dtype.element_ty), mask=at_end)
        dw = more_dw
        db = more_db
        mean = next_mean
        rstd = next_rstd
        slot = 1 - slot
    partial_ptr += program.to(gl.int64) * partial_stride
    if SKEWED:
        partial_ptr += _WIDTH
        gl.store(partial_ptr + end, dw_end, mask=at_end)
    for i in gl.static_range(PIECES):
        _store(partial_ptr, dw[i], i, length, PIECE, PIECES, WHOLE, LAYOUT)
    if CENTRED:
        partial_ptr += programs.to(gl.int64) * partial_stride
        for i in gl.static_range(PIECES):
            _store(partial_ptr, db[i], i, length, PIECE, PIECES, WHOLE, LAYOUT)
        if SKEWED:
            gl.store(partial_ptr + end, db_end, mask=at_end)


@gluon.jit
def _near(x_ptr):
    """The median of a row's first three elements, to avoid an outlier, as ``layer_norm_pieces_kernel``."""
    first = gl.load(x_ptr).to(gl.float32)
    second = gl.load(x_ptr + 1).to(gl.float32)
    third = gl.load(x_ptr + 2).to(gl.float32)
    return gl.maximum(gl.minimum(first, second), gl.minimum(gl.maximum(first, second), third))


@gluon.jit
def _load_all(ptr, length, PIECE: gl.constexpr, PIECES: gl.constexpr, LAYOUT: gl.constexpr):
    """Pieces of weights in registers; None without weights."""
    pieces = None
    if ptr is not None:
        pieces = ()
        for i in gl.static_range(PIECES):
            column = _column(i, PIECE, LAYOUT)
            pieces += (gl.load(ptr + column, mask=column < length, other=0.0),)
    return pieces


@gluon.jit
def _moments(
    xs, slot, x_end, at_end, near, length, columns,
    PIECE: gl.constexpr, PIECES: gl.constexpr, CENTRED: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """A row's mean and variance, or 0 and the mean square: sums of differences from ``near``, which is 0 then, and their squares."""
    total = gl.zeros([PIECE], gl.float32, LAYOUT)
    squares = gl.zeros([PIECE], gl.float32, LAYOUT)
    for i in gl.static_range(PIECES):
        x = _piece(xs, slot, i, PIECE, PIECE, LAYOUT) - near
        if i == PIECES - 1:  # masked elements were not copied
            x = gl.where(_column(i, PIECE, LAYOUT) < length, x, 0.0)
        total += x * SMALLER
        squares += x * x
    x = gl.where(at_end, x_end - near, 0.0)
    if CENTRED:
        total, squares = gl.reduce((total, squares), 0, add)
        total_end, squares_end = gl.reduce((x * SMALLER, x * x), 0, add)
        away = (total + total_end) / (columns * SMALLER)
        squares += squares_end
        # Infinite squares stay infinite: inf - inf would be NaN.
        variance = gl.where(squares == float("inf"), squares, squares / columns - away * away)
        mean = near + away
    else:
        variance = (gl.sum(squares, 0) + gl.sum(x * x, 0)) / columns
        mean = near
    return mean, variance


@gluon.jit
def _nothing(x_row, x_end, at_end, near, length, PIECE: gl.constexpr, LAYOUT: gl.constexpr):
    """0, or NaN if differences in a row overflow fp32, as then PyTorch's mean is NaN. Reads the row again, which is rare."""
    largest = gl.zeros([PIECE], gl.float32, LAYOUT) + near
    least = largest
    for start in range(0, length, PIECE):
        column = start + gl.arange(0, PIECE, layout=LAYOUT)
        x = gl.load(x_row + column, mask=column < length, other=0.0).to(gl.float32)
        x = gl.where(column < length, x, near)
        largest = gl.maximum(largest, x)
        least = gl.minimum(least, x)
    x = gl.where(at_end, x_end, near)
    return (gl.maximum(gl.max(largest, 0), gl.max(x, 0)) + gl.maximum(gl.max(-least, 0), gl.max(-x, 0))) * 0.0


@gluon.jit
def norm_skewed_shared_kernel(  # noqa: PLR0912, PLR0915 - as above
    y_ptr, stats_ptr, x_ptr, weight_ptr, bias_ptr, rows, columns, eps,
    PIECE: gl.constexpr, PIECES: gl.constexpr, CENTRED: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Rows ``program, program + programs, ...``, which are not 16-byte aligned, and their statistics, as ``norm_unaligned_kernel``.

    The next row is copied while one is worked on. Weights stay in registers, where they are loaded element by element, once.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([8], [32], [num_warps], [0])
    EACH: gl.constexpr = gl.BlockedLayout([1], [32], [num_warps], [0])
    SIZE: gl.constexpr = PIECES * PIECE
    xs = _places(x_ptr.dtype.element_ty, 2, SIZE, PIECE)
    program = gl.program_id(0)
    programs = gl.num_programs(0)
    before, length = whole_part(program.to(gl.int64) * columns, columns, _WIDTH)
    end, at_end = ends_of(before, length, columns, _WIDTH, EACH)
    start = begin_of(program, columns, before, _WIDTH, True)
    _copy_row(xs, 0, x_ptr + start, length, program < rows, SIZE, PIECE, False, LAYOUT)
    async_copy.commit_group()
    next_end = _ends(x_ptr + start, end, at_end)
    next_near = _near(x_ptr + start - before) if CENTRED else 0.0
    if weight_ptr is not None:
        weight_ptr += before
        weight_end = _ends(weight_ptr, end, at_end)
    if bias_ptr is not None:
        bias_ptr += before
        bias_end = _ends(bias_ptr, end, at_end)
    weights = _load_all(weight_ptr, length, PIECE, PIECES, LAYOUT)
    biases = _load_all(bias_ptr, length, PIECE, PIECES, LAYOUT)
    slot = program * 0
    for row in range(program, rows, programs):
        async_copy.wait_group(0)
        ahead = row + programs
        start = begin_of(ahead, columns, before, _WIDTH, True)
        _copy_row(xs, 1 - slot, x_ptr + start, length, ahead < rows, SIZE, PIECE, False, LAYOUT)
        async_copy.commit_group()
        x_end = next_end
        next_end = _ends(x_ptr + start, end, at_end & (ahead < rows))
        near = 0.0
        if CENTRED:
            near = next_near
            next_near = _near(x_ptr + begin_of(gl.minimum(ahead, rows - 1), columns, before, _WIDTH, True) - before)
        mean, variance = _moments(xs, slot, x_end, at_end, near, length, columns, PIECE, PIECES, CENTRED, LAYOUT)
        rstd = gl.rsqrt(variance + eps)
        if CENTRED:  # noqa: SIM102 - a constant
            if rstd == 0.0:
                x_row = x_ptr + begin_of(row, columns, before, _WIDTH, True)
                mean += _nothing(x_row, x_end, at_end, near, length, PIECE, LAYOUT)
        y_row = y_ptr + begin_of(row, columns, before, _WIDTH, True)
        for i in gl.static_range(PIECES):
            y = (_piece(xs, slot, i, PIECE, PIECE, LAYOUT) - mean) * rstd
            if weight_ptr is not None:
                y *= weights[i].to(gl.float32)
            if bias_ptr is not None:
                y += biases[i].to(gl.float32)
            _store(y_row, y, i, length, PIECE, PIECES, False, LAYOUT)
        y = (x_end - mean) * rstd
        if weight_ptr is not None:
            y *= weight_end
        if bias_ptr is not None:
            y += bias_end
        gl.store(y_row + end, y.to(y_ptr.dtype.element_ty), mask=at_end)
        if stats_ptr is not None:
            place = stats_ptr + (2 if CENTRED else 1) * row.to(gl.int64)
            if CENTRED:
                gl.store(place, mean)
                gl.store(place + 1, rstd)
            else:
                gl.store(place, rstd)
        slot = 1 - slot
