"""The norms for rows that are not 16-byte aligned, such as of an odd number of columns.

Plain blocks would access every element separately. Here a row's inner part starts and ends at 16-byte boundaries and is
accessed 16 bytes at a time; its two ends are accessed separately. With ``WIDTH`` elements in 16 bytes, every ``WIDTH``-th row
has the same misalignment. A program walks such rows, so that weights and gradient sums stay in the same registers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.integers import cdiv, next_power_of_2
from tilescope_kernels._shared.launches import launch
from tilescope_kernels._shared.launching import multiprocessors
from tilescope_kernels._shared.online_softmax import ends, whole_part
from tilescope_kernels._shared.weight_gradients import sum_partials, sums_dtype
from tilescope_kernels.norms.layer_norm_kernels import _SMALLER, _nothing

#: Fewest and most columns, the latter forward and, by ``centred``, backward. Shorter rows are few accesses anyway; longer ones
#: leave too few registers beside the sums for dW and dB.
_LEAST, _MOST, _MOST_BACKWARD = 513, 16384, {True: 8192, False: 16384}
#: Elements per thread and warps per SM: forward, backward, and LayerNorm's backward pass of few columns. In bf16, 16384x4097
#: took LayerNorm 291 us forward and takes 206, backward 312 and 233; 32768x1003 71 and 52, 99 and 76; 777x12345 38 and 26
#: forward, but 76 and 116 backward, so it keeps the plain kernel (intervals, H200, 2026-11-26, torch 2.11, triton 3.6).
_FORWARD, _BACKWARD, _BACKWARD_FEW = (32, 32), (16, 32), (16, 48)
#: Most elements of a block that leave registers for the weights: forward (by ``centred``), and backward.
_HELD, _HELD_BACKWARD = {True: 16384, False: 8192}, 8192


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
            total = tl.sum(x.to(tl.float32) * _SMALLER, axis=0) + tl.sum(x_end * _SMALLER, axis=0)
            mean = total / (columns * _SMALLER)
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


def serves_unaligned(*tensors: torch.Tensor, centred: bool, backward: bool = False) -> bool:
    """Whether these matrices are contiguous from an aligned address, with rows that are not 16-byte aligned and not too long."""
    columns = tensors[0].shape[1]
    return _LEAST <= columns <= (_MOST_BACKWARD[centred] if backward else _MOST) and all(
        tensor.stride(0) == columns and columns * tensor.element_size() % 16 and tensor.data_ptr() % 16 == 0
        for tensor in tensors
    )


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
    few = centred and columns <= 1024
    block, width, warps, programs = _plan(x, *(_BACKWARD_FEW if few else _BACKWARD))
    dx = x.new_empty(rows, columns)
    partial = x.new_empty((1 + centred, programs, columns), dtype=torch.float32)
    launch(
        norm_unaligned_backward_kernel, (programs,),
        dx, partial, dy, x, weight, stats, rows, columns,
        BLOCK=block, WIDTH=width, CENTRED=centred, HOLD=block <= _HELD_BACKWARD, num_warps=warps,
    )  # fmt: skip
    return dx, sum_partials(partial, sums_dtype(x, weight))
