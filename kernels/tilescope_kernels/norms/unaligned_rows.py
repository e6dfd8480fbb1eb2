"""The norms for rows that are not 16-byte aligned, such as of an odd number of columns.

Plain blocks would access every element separately. Here a row's inner part starts and ends at 16-byte boundaries and is
accessed 16 bytes at a time; its two ends are accessed separately. With ``WIDTH`` elements in 16 bytes, every ``WIDTH``-th row
has the same misalignment. A program walks such rows, so that weights and gradient sums stay in the same registers.

16-bit rows of more than a few columns pass shared memory (``shared_rows``), which holds the next row while one is worked on, and other
rows registers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.integers import cdiv, next_power_of_2
from tilescope_kernels._shared.launches import launch
from tilescope_kernels._shared.launching import capability, multiprocessors, shared_memory
from tilescope_kernels._shared.online_softmax import ends, whole_part
from tilescope_kernels._shared.weight_gradients import sum_partials, sums_dtype
from tilescope_kernels.norms.layer_norm_kernels import SMALLER, _nothing
from tilescope_kernels.norms.shared_rows import norm_backward_shared_kernel, norm_skewed_shared_kernel

#: Fewest and most columns, the latter forward and, by ``centred``, backward. Shorter rows are few accesses anyway; longer ones
#: leave too few registers beside the sums for dW and dB.
_LEAST, _MOST, _MOST_BACKWARD = 513, 16384, {True: 8192, False: 16384}
#: Elements per thread and warps per SM: forward, backward, and LayerNorm's backward pass of few columns. Where rows do not pass shared
#: memory, LayerNorm keeps the plain kernel for backward passes of few rows.
_FORWARD, _BACKWARD, _BACKWARD_FEW = (32, 32), (16, 32), (16, 48)
#: Most elements of a block that leave registers for the weights: forward (by ``centred``), and backward.
_HELD, _HELD_BACKWARD = {True: 16384, False: 8192}, 8192
#: Rows that pass shared memory: most columns and warps of a program, and by ``centred`` warps per SM. LayerNorm's weights leave
#: registers for half as many.
_SHARED, _SHARED_WARPS = ((2304, 2), (6144, 4), (16384, 16)), {True: 16, False: 32}
#: Backward, where programs hold sums: most columns, warps, and programs per SM.
_SHARED_BACKWARD = ((3072, 4, 4), (7168, 4, 2), (16384, 8, 1))
#: Fewest columns of rows that pass shared memory, forward and backward.
_LEAST_SHARED, _LEAST_SHARED_BACKWARD = 1025, 2049


@triton.jit
def _store(ptr, place, values, mask):
    tl.store(ptr + place, values.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def norm_unaligned_kernel(  # noqa: PLR0912, PLR0915 - each line twice, for the inner part and the ends
    y_ptr, stats_ptr, x_ptr, weight_ptr, bias_ptr, rows, columns, eps,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr, CENTRED: tl.constexpr, HOLD: tl.constexpr,
):  # fmt: skip
    """Rows ``program, program + programs, ...`` of contiguous ``x``, one at a time. ``programs`` is a multiple of ``WIDTH``.

    ``CENTRED`` is for LayerNorm, whose ``stats`` are each row's mean and 1 / standard deviation. RMSNorm's are 1 / RMS, and its
    ``bias`` is None. ``stats``, ``weight`` and ``bias`` may be None.
    """
    program = tl.program_id(0)
    _, before, length = whole_part(program.to(tl.int64) * columns, columns, WIDTH, True)
    column = tl.arange(0, BLOCK)
    offset, at_end = ends(before, length, columns, WIDTH)
    inner = column < length
    # The weights are aligned and the rows are not, so their loads are element-wise. With HOLD they are loaded once for all rows.
    if weight_ptr is not None:
        weight_ptr += before
        weight_end = tl.load(weight_ptr + offset, mask=at_end, other=0.0)
        if HOLD:
            weight = tl.load(weight_ptr + column, mask=inner, other=0.0)
    if bias_ptr is not None:
        bias_ptr += before
        bias_end = tl.load(bias_ptr + offset, mask=at_end, other=0.0)
        if HOLD:
            bias = tl.load(bias_ptr + column, mask=inner, other=0.0)
    for row in range(program, rows, tl.num_programs(0)):
        start = row + tl.full((), 0, tl.int64)  # int64; the interpreter's loop index has no .to()
        begin = (start * columns + before) // WIDTH * WIDTH
        x = tl.load(x_ptr + begin + column, mask=inner, other=0.0)
        x_end = tl.load(x_ptr + begin + offset, mask=at_end, other=0.0).to(tl.float32)
        if CENTRED:
            total = tl.sum(x.to(tl.float32) * SMALLER, axis=0) + tl.sum(x_end * SMALLER, axis=0)
            mean = total / (columns * SMALLER)
            apart = tl.where(inner, x.to(tl.float32) - mean, 0.0)
            apart_end = tl.where(at_end, x_end - mean, 0.0)
        else:
            mean = 0.0
            apart = x.to(tl.float32)
            apart_end = x_end
        squares = tl.sum(apart * apart, axis=0) + tl.sum(apart_end * apart_end, axis=0)
        rstd = tl.rsqrt(squares / columns + eps)
        if CENTRED:  # noqa: SIM102 - a constant
            if rstd == 0.0:
                wide = x.to(tl.float32)
                largest = tl.max(tl.where(inner, wide, float("-inf")), axis=0)
                least = tl.min(tl.where(inner, wide, float("inf")), axis=0)
                largest = tl.maximum(largest, tl.max(tl.where(at_end, x_end, float("-inf")), axis=0))
                least = tl.minimum(least, tl.min(tl.where(at_end, x_end, float("inf")), axis=0))
                mean += _nothing(largest, least)
        y = (x.to(tl.float32) - mean) * rstd
        y_end = (x_end - mean) * rstd
        if weight_ptr is not None:
            if HOLD:
                y *= weight.to(tl.float32)
            else:
                y *= tl.load(weight_ptr + column, mask=inner, eviction_policy="evict_last").to(tl.float32)
            y_end *= weight_end.to(tl.float32)
        if bias_ptr is not None:
            if HOLD:
                y += bias.to(tl.float32)
            else:
                y += tl.load(bias_ptr + column, mask=inner, eviction_policy="evict_last").to(tl.float32)
            y_end += bias_end.to(tl.float32)
        _store(y_ptr, begin + column, y, inner)
        _store(y_ptr, begin + offset, y_end, at_end)
        if stats_ptr is not None:
            if CENTRED:
                tl.store(stats_ptr + 2 * start, mean)
                tl.store(stats_ptr + 2 * start + 1, rstd)
            else:
                tl.store(stats_ptr + start, rstd)


@triton.jit
def norm_unaligned_backward_kernel(  # noqa: PLR0915 - each line twice, for the inner part and the ends
    dx_ptr, partial_ptr, dy_ptr, x_ptr, weight_ptr, stats_ptr, rows, columns,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr, CENTRED: tl.constexpr, HOLD: tl.constexpr,
):  # fmt: skip
    """``dx`` of rows ``program, program + programs, ...`` of contiguous ``x`` and ``dy``, and their share of dW and dB.

    ``programs`` is a multiple of ``WIDTH``. The formulas are those of ``norm_short_rows_backward_kernel``. ``weight`` may be
    None; ``HOLD`` keeps it in registers.
    """
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    _, before, length = whole_part(program.to(tl.int64) * columns, columns, WIDTH, True)
    column = tl.arange(0, BLOCK)
    offset, at_end = ends(before, length, columns, WIDTH)
    inner = column < length
    dw = tl.zeros((BLOCK,), tl.float32)
    dw_end = tl.zeros((2 * WIDTH,), tl.float32)
    db = tl.zeros((BLOCK,), tl.float32)
    db_end = tl.zeros((2 * WIDTH,), tl.float32)
    if weight_ptr is not None:
        weight_ptr += before
        weight_end = tl.load(weight_ptr + offset, mask=at_end, other=0.0)
        if HOLD:
            weight = tl.load(weight_ptr + column, mask=inner, other=0.0)
    for row in range(program, rows, programs):
        start = row + tl.full((), 0, tl.int64)  # as above
        begin = (start * columns + before) // WIDTH * WIDTH
        x = tl.load(x_ptr + begin + column, mask=inner, other=0.0)
        dy = tl.load(dy_ptr + begin + column, mask=inner, other=0.0)
        x_end = tl.load(x_ptr + begin + offset, mask=at_end, other=0.0)
        dy_end = tl.load(dy_ptr + begin + offset, mask=at_end, other=0.0)
        if CENTRED:
            mean = tl.load(stats_ptr + 2 * start)
            rstd = tl.load(stats_ptr + 2 * start + 1)
        else:
            mean = 0.0
            rstd = tl.load(stats_ptr + start)
        # Masked lanes have dy = 0, so g = 0, and add nothing.
        normed = (x.to(tl.float32) - mean) * rstd
        normed_end = (x_end.to(tl.float32) - mean) * rstd
        g = dy.to(tl.float32)
        g_end = dy_end.to(tl.float32)
        if weight_ptr is not None:
            g_end *= weight_end.to(tl.float32)
            if HOLD:
                g *= weight.to(tl.float32)
            else:
                g *= tl.load(weight_ptr + column, mask=inner, other=0.0, eviction_policy="evict_last").to(tl.float32)
        product = (tl.sum(g * normed, axis=0) + tl.sum(g_end * normed_end, axis=0)) / columns
        dx = g - normed * product
        dx_end = g_end - normed_end * product
        if CENTRED:
            mean_g = (tl.sum(g, axis=0) + tl.sum(g_end, axis=0)) / columns
            dx -= mean_g
            dx_end -= mean_g
            db += dy.to(tl.float32)
            db_end += dy_end.to(tl.float32)
        dw += dy.to(tl.float32) * normed
        dw_end += dy_end.to(tl.float32) * normed_end
        _store(dx_ptr, begin + column, dx * rstd, inner)
        _store(dx_ptr, begin + offset, dx_end * rstd, at_end)
    partial_ptr += program.to(tl.int64) * columns + before
    _store(partial_ptr, column, dw, inner)
    _store(partial_ptr, offset, dw_end, at_end)
    if CENTRED:
        partial_ptr += programs.to(tl.int64) * columns
        _store(partial_ptr, column, db, inner)
        _store(partial_ptr, offset, db_end, at_end)


@triton.jit
def sum_skewed_partials_kernel(
    out_ptr, partial_ptr, programs, stride, columns, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """``out[i, c] = sum over p of partial[i, p, WIDTH + c - before(p)]``, with ``before`` elements ahead of p's aligned ones."""
    which = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    row = tl.arange(0, ROWS)[:, None]
    partial_ptr += which * programs * stride + WIDTH
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, programs, ROWS):
        program = start + row
        before = (WIDTH - program * columns % WIDTH) % WIDTH
        mask = (program < programs) & (column < columns)
        total += tl.load(partial_ptr + program * stride + column - before, mask=mask, other=0.0)
    out = tl.sum(total, axis=0, keep_dims=True)
    tl.store(out_ptr + which * columns + column, out.to(out_ptr.dtype.element_ty), mask=column < columns)


def serves_unaligned(*tensors: torch.Tensor, centred: bool, backward: bool = False) -> bool:
    """Whether these matrices are contiguous from an aligned address, with rows that are not 16-byte aligned and not too long."""
    columns = tensors[0].shape[1]
    most = _MOST_BACKWARD[centred] if backward and not _in_shared_memory(*tensors) else _MOST
    return _LEAST <= columns <= most and all(
        tensor.stride(0) == columns and columns * tensor.element_size() % 16 and tensor.data_ptr() % 16 == 0
        for tensor in tensors
    )


def _in_shared_memory(*tensors: torch.Tensor) -> bool:
    """Whether rows of x, or of x and dy, can pass shared memory: in 16 bits, on GPUs with as much of it as Hopper's."""
    x = tensors[0]
    least = _LEAST_SHARED if len(tensors) == 1 else _LEAST_SHARED_BACKWARD
    # Two rows of x and of dy, and a weight in fp32.
    enough = capability(x) >= 80 and shared_memory(x) > 12 * _MOST + 2048
    return x.shape[1] >= least and enough and all(t.element_size() == 2 for t in tensors)


def _shared_plan(x: torch.Tensor, warps: int, programs: int) -> tuple[int, dict[str, int]]:
    """Programs, and parameters of a kernel with rows in shared memory."""
    rows, columns = x.shape
    piece = 256 * warps
    running = programs * multiprocessors(x) // 8 * 8
    return min(rows, running), {"PIECE": piece, "PIECES": cdiv(columns // 8 * 8, piece), "num_warps": warps}


def _plan(x: torch.Tensor, elements: int, together: int) -> tuple[int, int, int, int]:
    """Elements of a block, elements in 16 bytes, warps, and programs, for ``together`` warps per SM."""
    rows, columns = x.shape
    width = 16 // x.element_size()
    block = next_power_of_2(columns)
    warps = max(4, min(32, block // (32 * elements)))
    each = max(1, together // warps)
    return block, width, warps, min(cdiv(rows, width), cdiv(each * multiprocessors(x), width)) * width


def forward_unaligned(
    y: torch.Tensor, stats: torch.Tensor | None, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None,
    eps: float, centred: bool,
) -> None:  # fmt: skip
    """Fill y and, unless it is None, ``stats``."""
    if _in_shared_memory(x):
        warps = next(warps for most, warps in _SHARED if x.shape[1] <= most)
        programs, parameters = _shared_plan(x, warps, _SHARED_WARPS[centred] // warps)
        if centred:  # or fewer programs fit an SM
            parameters["maxnreg"] = 65536 // (32 * _SHARED_WARPS[centred])
        launch(
            norm_skewed_shared_kernel, (programs,),
            y, stats, x, weight, bias, x.shape[0], x.shape[1], eps,
            CENTRED=centred, **parameters,
        )  # fmt: skip
        return
    block, width, warps, programs = _plan(x, *_FORWARD)
    launch(
        norm_unaligned_kernel, (programs,),
        y, stats, x, weight, bias, x.shape[0], x.shape[1], eps,
        BLOCK=block, WIDTH=width, CENTRED=centred, HOLD=block <= _HELD[centred], num_warps=warps,
    )  # fmt: skip


def backward_unaligned(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, stats: torch.Tensor, centred: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """dx, and dW and (if ``centred``) dB as rows of one tensor."""
    rows, columns = x.shape
    dx = x.new_empty(rows, columns)
    if _in_shared_memory(x, dy):
        warps, programs = next((warps, programs) for most, warps, programs in _SHARED_BACKWARD if columns <= most)
        programs, parameters = _shared_plan(x, warps, programs)
        # The compiler proves 16-byte alignment from a multiple of 16 elements.
        stride = cdiv(columns + 8, 16) * 16
        partial = x.new_empty((1 + centred, programs, stride), dtype=torch.float32)
        launch(
            norm_backward_shared_kernel, (programs,),
            dx, partial, dy, x, weight, stats, columns, stride, rows, columns,
            CHUNK=parameters["PIECE"], WHOLE=False, CENTRED=centred, SKEWED=True, **parameters,
        )  # fmt: skip
        return dx, sum_skewed(partial, columns, sums_dtype(x, weight))
    few = centred and columns <= 1024
    block, width, warps, programs = _plan(x, *(_BACKWARD_FEW if few else _BACKWARD))
    partial = x.new_empty((1 + centred, programs, columns), dtype=torch.float32)
    launch(
        norm_unaligned_backward_kernel, (programs,),
        dx, partial, dy, x, weight, stats, rows, columns,
        BLOCK=block, WIDTH=width, CENTRED=centred, HOLD=block <= _HELD_BACKWARD, num_warps=warps,
    )  # fmt: skip
    return dx, sum_partials(partial, sums_dtype(x, weight))


def sum_skewed(partial: torch.Tensor, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """As ``sum_partials``, of the partial sums that ``norm_backward_shared_kernel`` leaves of rows that are not 16-byte aligned."""
    outputs, programs, stride = partial.shape
    out = torch.empty((outputs, columns), dtype=dtype, device=partial.device)
    block, rows = (32, 64) if programs <= 256 else (16, 512)
    launch(
        sum_skewed_partials_kernel, (cdiv(columns, block), outputs),
        out, partial, programs, stride, columns,
        WIDTH=8, ROWS=rows, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return out
