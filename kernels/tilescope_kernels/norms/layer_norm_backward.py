"""LayerNorm's backward pass with rows in shared memory, for rows whose sums for dW and dB fill the registers.

The kernel is in Gluon, which controls shared memory. In Triton the row competes with the sums for registers, and dB needs
another pass over dy.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from tilescope_kernels._shared.row_ring import add, copy_part


@gluon.jit
def _copy_both(x_row, dy_row, x_ptr, dy_ptr, columns, wanted, WHOLE: gl.constexpr, LAYOUT: gl.constexpr):
    """Start asynchronous copies of a row of x and dy, as one group."""
    copy_part(x_row, x_ptr, columns, wanted, WHOLE, LAYOUT)
    copy_part(dy_row, dy_ptr, columns, wanted, WHOLE, LAYOUT)
    async_copy.commit_group()


@gluon.jit
def _piece(shared, i, PIECE: gl.constexpr, LAYOUT: gl.constexpr):
    return shared.slice(i * PIECE, PIECE).load(LAYOUT).to(gl.float32)


@gluon.jit
def _row_sums(
    x_row, dy_row, weights, mean, columns,
    PIECE: gl.constexpr, PIECES: gl.constexpr, WHOLE: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Row sums of g = dy * weight and of g * (x - mean), in one reduction over threads."""
    sum_g = gl.zeros([PIECE], gl.float32, LAYOUT)
    sum_gx = gl.zeros([PIECE], gl.float32, LAYOUT)
    for i in gl.static_range(PIECES):
        x = _piece(x_row, i, PIECE, LAYOUT) - mean
        g = _piece(dy_row, i, PIECE, LAYOUT)
        if weights is not None:
            g *= _piece(weights, i, PIECE, LAYOUT)
        if not WHOLE:  # masked elements were not copied
            valid = i * PIECE + gl.arange(0, PIECE, layout=LAYOUT) < columns
            x = gl.where(valid, x, 0.0)
            g = gl.where(valid, g, 0.0)
        sum_g += g
        sum_gx += g * x
    return gl.reduce((sum_g, sum_gx), 0, add)


@gluon.jit
def _store(ptr, values, i, columns, PIECE: gl.constexpr, WHOLE: gl.constexpr, LAYOUT: gl.constexpr):
    column = i * PIECE + gl.arange(0, PIECE, layout=LAYOUT)
    gl.store(ptr + column, values.to(ptr.dtype.element_ty), mask=None if WHOLE else column < columns)


@gluon.jit
def _statistics(stats_ptr, row):
    """The mean and 1 / standard deviation of a row."""
    stats_ptr += 2 * row.to(gl.int64)
    return gl.load(stats_ptr), gl.load(stats_ptr + 1)


@gluon.jit
def layer_norm_backward_shared_kernel(
    dx_ptr, partial_ptr, dy_ptr, x_ptr, weight_ptr, stats_ptr, x_stride, rows, columns,
    PIECE: gl.constexpr, PIECES: gl.constexpr, WHOLE: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """``dx`` of rows ``program, program + programs, ...``, and their sums for dW and dB in ``partial``.

    The formulas are those of ``layer_norm_backward_kernel``. A row has ``PIECES`` pieces of ``PIECE`` elements, 8 per thread,
    which need no mask if they are ``WHOLE``. The next row is copied while one is worked on. Beside the sums, registers hold
    one piece at a time. ``weight`` may be None.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([8], [32], [num_warps], [0])
    SHARED: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 1, [0])
    # A shared-memory tensor has a power of two of elements, but a row may have three pieces.
    BLOCK: gl.constexpr = 4 * PIECE if PIECES == 3 else PIECES * PIECE
    FULL: gl.constexpr = WHOLE and PIECES * PIECE == BLOCK
    xs = gl.allocate_shared_memory(x_ptr.dtype.element_ty, [2, BLOCK], SHARED)
    dys = gl.allocate_shared_memory(dy_ptr.dtype.element_ty, [2, BLOCK], SHARED)
    weights = None
    program = gl.program_id(0)
    programs = gl.num_programs(0)
    if weight_ptr is not None:
        weights = gl.allocate_shared_memory(weight_ptr.dtype.element_ty, [BLOCK], SHARED)
        copy_part(weights, weight_ptr, columns, rows > 0, FULL, LAYOUT)
    x_row, dy_row = x_ptr + program.to(gl.int64) * x_stride, dy_ptr + program.to(gl.int64) * columns
    _copy_both(xs.index(0), dys.index(0), x_row, dy_row, columns, program < rows, FULL, LAYOUT)
    dw = ()
    db = ()
    for _ in gl.static_range(PIECES):
        dw += (gl.zeros([PIECE], gl.float32, LAYOUT),)
        db += (gl.zeros([PIECE], gl.float32, LAYOUT),)
    slot = program * 0
    mean, rstd = _statistics(stats_ptr, program)
    for row in range(program, rows, programs):
        async_copy.wait_group(0)
        ahead = (row + programs).to(gl.int64)
        x_row, dy_row = x_ptr + ahead * x_stride, dy_ptr + ahead * columns
        _copy_both(xs.index(1 - slot), dys.index(1 - slot), x_row, dy_row, columns, ahead < rows, FULL, LAYOUT)
        next_mean, next_rstd = _statistics(stats_ptr, gl.minimum(row + programs, rows - 1))
        sum_g, sum_gx = _row_sums(xs.index(slot), dys.index(slot), weights, mean, columns, PIECE, PIECES, WHOLE, LAYOUT)
        # dx = g * rstd - (n * inner + mean_g)
        mean_g = sum_g / columns * rstd
        inner = sum_gx / columns * rstd * rstd
        dx_row = dx_ptr + row.to(gl.int64) * columns
        more_dw = ()
        more_db = ()
        for i in gl.static_range(PIECES):
            n = _piece(xs.index(slot), i, PIECE, LAYOUT) * rstd - mean * rstd
            dy = _piece(dys.index(slot), i, PIECE, LAYOUT)
            more_dw += (dw[i] + dy * n,)
            more_db += (db[i] + dy,)
            if weight_ptr is not None:
                dy *= _piece(weights, i, PIECE, LAYOUT)
            _store(dx_row, dy * rstd - (n * inner + mean_g), i, columns, PIECE, WHOLE, LAYOUT)
        dw = more_dw
        db = more_db
        mean = next_mean
        rstd = next_rstd
        slot = 1 - slot
    partial_ptr += program.to(gl.int64) * columns
    for i in gl.static_range(PIECES):
        _store(partial_ptr, dw[i], i, columns, PIECE, WHOLE, LAYOUT)
        _store(partial_ptr + programs.to(gl.int64) * columns, db[i], i, columns, PIECE, WHOLE, LAYOUT)
