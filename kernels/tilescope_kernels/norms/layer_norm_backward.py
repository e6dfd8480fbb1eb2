"""LayerNorm's backward pass for 16-bit rows in shared memory, where the sums for dW and dB fill the registers.

The kernel is in Gluon, which controls shared memory. In Triton the row competes with sums and weights for registers, and dB needs
another pass over dy.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from tilescope_kernels._shared.integers import cdiv, next_power_of_2
from tilescope_kernels._shared.launches import launch
from tilescope_kernels._shared.launching import capability, multiprocessors, shared_memory
from tilescope_kernels._shared.row_ring import add, copy_part
from tilescope_kernels._shared.weight_gradients import sum_partials, sums_dtype

#: Elements in 16 bytes.
_WIDTH = gl.constexpr(8)
#: Rows that the kernel serves: columns above and up to, warps (three or four pieces per row), and programs per SM, whose sums take at
#: most half of its registers. Rows of a power of two up to 8192 are faster in one block.
_SERVED = ((2048, 3072, 4, 3), (4096, 6144, 8, 2), (8192, 16384, 16, 1))
#: Columns up to which each piece has its own shared memory. Wider rows are faster in a power of two of elements.
_CHUNKED = 8192
#: Rows in a program's shared memory: two of x, two of dy and the weight.
_HELD_ROWS = 5


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
    places, slot, ptr, columns, wanted,
    SIZE: gl.constexpr, CHUNK: gl.constexpr, WHOLE: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Start asynchronous copies of a row. Only its last chunk needs a mask, unless it is ``WHOLE``."""
    for i in gl.static_range(len(places)):
        place = places[i].index(slot)
        copy_part(
            place, ptr + i * CHUNK, columns - i * CHUNK, wanted,
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
    xs, dys, slot, weights, mean, columns,
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
            valid = _column(i, PIECE, LAYOUT) < columns
            x = gl.where(valid, x, 0.0)
            g = gl.where(valid, g, 0.0)
        sum_g += g
        sum_gx += g * x
    return gl.reduce((sum_g, sum_gx), 0, add)


@gluon.jit
def _store(
    ptr, values, i, columns, PIECE: gl.constexpr, PIECES: gl.constexpr, WHOLE: gl.constexpr, LAYOUT: gl.constexpr
):
    column = _column(i, PIECE, LAYOUT)
    mask = None if WHOLE or i < PIECES - 1 else column < columns
    gl.store(ptr + column, values.to(ptr.dtype.element_ty), mask=mask)


@gluon.jit(do_not_specialize=["rows"])
def layer_norm_backward_shared_kernel(  # noqa: PLR0915 - a row, and the next one on its way
    dx_ptr, partial_ptr, dy_ptr, x_ptr, weight_ptr, stats_ptr, x_stride, rows, columns,
    PIECE: gl.constexpr, PIECES: gl.constexpr, CHUNK: gl.constexpr, WHOLE: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """``dx`` of rows ``program, program + programs, ...``, and their sums for dW and dB in ``partial``.

    The formulas are those of ``norm_short_rows_backward_kernel``. A row has ``PIECES`` pieces of ``PIECE`` elements, 8 per
    thread, the last of which needs no mask if it is ``WHOLE``. The next row is copied, by ``CHUNK`` elements, while one is worked
    on. Beside the sums, registers hold one piece at a time. ``weight`` may be None.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([8], [32], [num_warps], [0])
    SIZE: gl.constexpr = PIECES * PIECE
    xs = _places(x_ptr.dtype.element_ty, 2, SIZE, CHUNK)
    dys = _places(dy_ptr.dtype.element_ty, 2, SIZE, CHUNK)
    weights = None
    if weight_ptr is not None:
        weights = _places(weight_ptr.dtype.element_ty, 1, SIZE, CHUNK)
        _copy_row(weights, 0, weight_ptr, columns, rows > 0, SIZE, CHUNK, WHOLE, LAYOUT)
    program = gl.program_id(0)
    programs = gl.num_programs(0)
    start = program.to(gl.int64)
    _copy_row(xs, 0, x_ptr + start * x_stride, columns, program < rows, SIZE, CHUNK, WHOLE, LAYOUT)
    _copy_row(dys, 0, dy_ptr + start * columns, columns, program < rows, SIZE, CHUNK, WHOLE, LAYOUT)
    async_copy.commit_group()
    dw = ()
    db = ()
    for _ in gl.static_range(PIECES):
        dw += (gl.zeros([PIECE], gl.float32, LAYOUT),)
        db += (gl.zeros([PIECE], gl.float32, LAYOUT),)
    slot = program * 0
    mean = gl.load(stats_ptr + 2 * start)
    rstd = gl.load(stats_ptr + 2 * start + 1)
    for row in range(program, rows, programs):
        async_copy.wait_group(0)
        ahead = row + programs
        start = ahead.to(gl.int64)
        _copy_row(xs, 1 - slot, x_ptr + start * x_stride, columns, ahead < rows, SIZE, CHUNK, WHOLE, LAYOUT)
        _copy_row(dys, 1 - slot, dy_ptr + start * columns, columns, ahead < rows, SIZE, CHUNK, WHOLE, LAYOUT)
        async_copy.commit_group()
        next_stats = stats_ptr + 2 * gl.minimum(ahead, rows - 1).to(gl.int64)
        next_mean, next_rstd = gl.load(next_stats), gl.load(next_stats + 1)
        sum_g, sum_gx = _row_sums(xs, dys, slot, weights, mean, columns, PIECE, PIECES, CHUNK, WHOLE, LAYOUT)
        # dx = g * rstd - (n * inner + mean_g)
        mean_g = sum_g / columns * rstd
        inner = sum_gx / columns * rstd * rstd
        dx_row = dx_ptr + row.to(gl.int64) * columns
        more_dw = ()
        more_db = ()
        for i in gl.static_range(PIECES):
            n = _piece(xs, slot, i, PIECE, CHUNK, LAYOUT) * rstd - mean * rstd
            dy = _piece(dys, slot, i, PIECE, CHUNK, LAYOUT)
            more_dw += (dw[i] + dy * n,)
            more_db += (db[i] + dy,)
            if weight_ptr is not None:
                dy *= _piece(weights, 0, i, PIECE, CHUNK, LAYOUT)
            _store(dx_row, dy * rstd - (n * inner + mean_g), i, columns, PIECE, PIECES, WHOLE, LAYOUT)
        dw = more_dw
        db = more_db
        mean = next_mean
        rstd = next_rstd
        slot = 1 - slot
    partial_ptr += program.to(gl.int64) * columns
    for i in gl.static_range(PIECES):
        _store(partial_ptr, dw[i], i, columns, PIECE, PIECES, WHOLE, LAYOUT)
    partial_ptr += programs.to(gl.int64) * columns
    for i in gl.static_range(PIECES):
        _store(partial_ptr, db[i], i, columns, PIECE, PIECES, WHOLE, LAYOUT)


def _plan(x: torch.Tensor, config: str, *read: torch.Tensor | None) -> tuple[int, int] | None:
    """Warps and programs per SM; None where the kernel does not apply."""
    columns = x.shape[1]
    # The compiler proves 16-byte alignment from addresses and extents that are multiples of 16.
    copied = columns % 16 == x.stride(0) % 16 == 0 and all(
        t is None or (t.element_size() == 2 and t.data_ptr() % 16 == 0) for t in (x, *read)
    )
    if config or not copied or capability(x) == 0:
        return None
    for beyond, most, warps, programs in _SERVED:
        if beyond < columns <= most:
            piece = 256 * warps
            size = cdiv(columns, piece) * piece if columns <= _CHUNKED else next_power_of_2(columns)
            return (warps, programs) if programs * _HELD_ROWS * 2 * size < shared_memory(x) else None
    return None


def backward_in_shared_memory(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, stats: torch.Tensor, config: str
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """dx, and dW and dB as rows of one tensor; None for other rows, and where a ``config`` selects the norm's own kernel."""
    plan = _plan(x, config, dy, weight)
    if plan is None:
        return None
    (rows, columns), (warps, programs) = x.shape, plan
    dx = x.new_empty(rows, columns)
    partial = torch.empty((2, min(rows, programs * multiprocessors(x)), columns), device=x.device)
    piece = 256 * warps
    launch(
        layer_norm_backward_shared_kernel, (partial.shape[1],),
        dx, partial, dy, x, weight, stats, x.stride(0), rows, columns,
        PIECE=piece, PIECES=cdiv(columns, piece), CHUNK=piece if columns <= _CHUNKED else next_power_of_2(columns),
        WHOLE=columns % piece == 0, num_warps=warps,
    )  # fmt: skip
    return dx, sum_partials(partial, sums_dtype(x, weight))
