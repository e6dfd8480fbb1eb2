"""Softmax of rows that are too long for a program's registers: held in shared memory (``softmax_gluon``), in parts, or read twice."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.exponentials import exp, finite, merge
from tilescope_kernels._shared.launching import cdiv, launch, multiprocessors, next_power_of_2
from tilescope_kernels._shared.online_softmax import sum_exp
from tilescope_kernels._shared.row_tiles import columns_of, ends, skewed, whole_part
from tilescope_kernels.reductions.softmax_gluon import softmax_backward_in_parts, softmax_with_held_rows
from tilescope_kernels.spec import Config

#: Bytes of the longest row for which an H200's L2 holds the rows of two programs per SM.
_IN_L2 = 176 * 1024
#: Bytes of the longest row in the backward pass that is read twice in place of parts.
_READ_TWICE = 64 * 1024
#: Columns of a part of a row.
_PART = 8192


@triton.jit
def _softmax_piece(y_ptr, x_ptr, mask, shift, inverse):
    # These bytes are not read again: they should not evict rows that other programs will read.
    x = tl.load(x_ptr, mask=mask, eviction_policy="evict_first").to(tl.float32)
    y = exp(x - shift) * inverse
    tl.store(y_ptr, y.to(y_ptr.dtype.element_ty), mask=mask, cache_modifier=".cs")


@triton.jit
def softmax_online_kernel(
    y_ptr, x_ptr, x_stride, columns, LANES: tl.constexpr, WIDTH: tl.constexpr, SKEWED: tl.constexpr
):
    """One row per program, in blocks: two reads, the second from L2, and one write. ``SKEWED`` rows of x and y share their misalignment."""
    row = tl.program_id(0).to(tl.int64)
    begin, before, length = whole_part(row * x_stride, columns, WIDTH, SKEWED)
    x_ptr += begin
    y_ptr += begin if SKEWED else row * columns
    _, shift, total, _ = sum_exp(x_ptr, before, length, columns, LANES, WIDTH, SKEWED, KEEP=True)
    # The sum is infinite only if x is, and 0 only for a row of -inf, where 0 * (1 / 0) is NaN. PyTorch returns NaN for both.
    inverse = tl.where(total == float("inf"), float("nan"), 1.0 / total)
    offsets = columns_of(0, LANES, WIDTH)
    whole = length // (LANES * WIDTH) * (LANES * WIDTH)
    for start in range(0, whole, LANES * WIDTH):
        _softmax_piece(y_ptr + start + offsets, x_ptr + start + offsets, None, shift, inverse)
    if whole < length:
        column = whole + offsets
        _softmax_piece(y_ptr + column, x_ptr + column, column < length, shift, inverse)
    if SKEWED:
        offset, inside = ends(before, length, columns, WIDTH)
        _softmax_piece(y_ptr + offset, x_ptr + offset, inside, shift, inverse)


@triton.jit
def softmax_part_sums_kernel(sums_ptr, x_ptr, x_stride, columns, parts, BLOCK: tl.constexpr):
    """Maximum and sum of exponentials of a part of a row of few, whose parts are more programs than there are rows."""
    part, row = tl.program_id(0) % parts, (tl.program_id(0) // parts).to(tl.int64)
    column = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * x_stride + column, mask=column < columns, other=float("-inf")).to(tl.float32)
    largest = tl.max(x, axis=0)
    sums_ptr += 2 * (row * parts + part)
    tl.store(sums_ptr, largest)
    tl.store(sums_ptr + 1, tl.sum(exp(x - finite(largest)), axis=0))


@triton.jit
def softmax_parts_kernel(y_ptr, sums_ptr, x_ptr, x_stride, columns, parts, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    """A part of a row's result, from the sums of all its parts."""
    part, row = tl.program_id(0) % parts, (tl.program_id(0) // parts).to(tl.int64)
    column = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * x_stride + column, mask=column < columns, other=0.0).to(tl.float32)
    other = tl.arange(0, PARTS)
    sums_ptr += 2 * (row * parts + other)
    largest = tl.load(sums_ptr, mask=other < parts, other=float("-inf"))
    largest, total = tl.reduce((largest, tl.load(sums_ptr + 1, mask=other < parts, other=0.0)), 0, merge)
    # As above: NaN for a row of -inf and for one with +inf.
    inverse = tl.where(total == float("inf"), float("nan"), 1.0 / total)
    y = exp(x - finite(largest)) * inverse
    tl.store(y_ptr + row * columns + column, y.to(y_ptr.dtype.element_ty), mask=column < columns)


@triton.jit
def _gradient_piece(dx_ptr, dy_ptr, y_ptr, inner):
    dy = tl.load(dy_ptr, eviction_policy="evict_first").to(tl.float32)
    y = tl.load(y_ptr, eviction_policy="evict_first").to(tl.float32)
    tl.store(dx_ptr, ((dy - inner) * y).to(dx_ptr.dtype.element_ty), cache_modifier=".cs")


@triton.jit
def softmax_twice_backward_kernel(
    dx_ptr, dy_ptr, y_ptr, columns, LANES: tl.constexpr, WIDTH: tl.constexpr, SKEWED: tl.constexpr
):
    """``dx`` of one row per program: four reads, two of them from L2, and one write. ``SKEWED`` rows are not 16-byte aligned.

    The last step and a row's ends, which need a mask, stay in registers. The others are walked backwards: the row's end was read last
    and is most likely still in cache.
    """
    row = tl.program_id(0).to(tl.int64)
    begin, before, length = whole_part(row * columns, columns, WIDTH, SKEWED)
    dx_ptr += begin
    dy_ptr += begin
    y_ptr += begin
    step: tl.constexpr = LANES * WIDTH
    steps = length // step
    offsets = columns_of(0, LANES, WIDTH)
    last = steps * step + offsets
    mask = last < length
    if SKEWED:
        offset, inside = ends(before, length, columns, WIDTH)
        dy_end = tl.load(dy_ptr + offset, mask=inside, other=0.0).to(tl.float32)
        y_end = tl.load(y_ptr + offset, mask=inside, other=0.0).to(tl.float32)
    products = tl.zeros((LANES,), tl.float32)
    for start in range(0, steps * step, step):
        dy = tl.load(dy_ptr + start + offsets, eviction_policy="evict_last").to(tl.float32)
        y = tl.load(y_ptr + start + offsets, eviction_policy="evict_last").to(tl.float32)
        products += tl.sum(dy * y, axis=1)
    dy = tl.load(dy_ptr + last, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + last, mask=mask, other=0.0).to(tl.float32)
    inner = tl.sum(products + tl.sum(dy * y, axis=1), axis=0)
    if SKEWED:
        inner += tl.sum(dy_end * y_end, axis=0)
        tl.store(dx_ptr + offset, ((dy_end - inner) * y_end).to(dx_ptr.dtype.element_ty), mask=inside)
    tl.store(dx_ptr + last, ((dy - inner) * y).to(dx_ptr.dtype.element_ty), mask=mask)
    for index in range(0, steps):
        place = (steps - 1 - index) * step + offsets
        _gradient_piece(dx_ptr + place, dy_ptr + place, y_ptr + place, inner)


def _walked(x: torch.Tensor, config: Config, warps: int, accesses: int) -> Config:
    """Parameters for programs that walk one row, with so many 16-byte accesses in flight per thread.

    Raises ValueError for a config with several rows per program.
    """
    if config.get("ROWS", 1) > 1:
        raise ValueError(f"config has ROWS={config['ROWS']}: a program walks one row of so many columns")
    warps = config.get("num_warps", warps)
    lanes, width = 32 * accesses * warps, 16 // x.element_size()
    return {"num_warps": warps, "LANES": lanes, "WIDTH": width, "SKEWED": skewed(x)}


def write(y: torch.Tensor, x: torch.Tensor, config: Config) -> None:
    """Fill y. Without a ``config`` two programs hold a row each in an SM, if rows fit, or programs share few rows.

    Other rows are read twice, the second time from L2.
    """
    rows, columns = x.shape
    if not config and softmax_with_held_rows(y, x, skewed(x)):
        return
    # Few rows would leave most SMs idle.
    if not config and rows <= multiprocessors(x) // 4 and columns % 16 == x.stride(0) % 16 == 0:
        parts = cdiv(columns, _PART)
        sums = torch.empty((rows, parts, 2), dtype=torch.float32, device=x.device)
        grid, given, common = (rows * parts,), (x, x.stride(0), columns, parts), {"BLOCK": _PART, "num_warps": 8}
        launch(softmax_part_sums_kernel, grid, sums, *given, **common)
        launch(softmax_parts_kernel, grid, y, sums, *given, PARTS=next_power_of_2(parts), **common)
        return
    # With four accesses and 32 warps, one program fills an SM: with two per SM, L2 would evict very long rows before their second
    # read. Rows with ends exchange more, so they take 16 warps.
    has_ends, is_very_long = skewed(x), columns * x.element_size() > _IN_L2
    walked = _walked(x, config, 16 if has_ends and not is_very_long else 32, 4 if has_ends or is_very_long else 2)
    launch(softmax_online_kernel, (rows,), y, x, x.stride(0), columns, **walked)


def write_gradient(dx: torch.Tensor, dy: torch.Tensor, y: torch.Tensor, config: Config) -> None:
    """Fill dx. Without a ``config`` several programs hold a part each of a row in shared memory, if they fit, or rows are read twice."""
    if not config and y.shape[1] * y.element_size() > _READ_TWICE and softmax_backward_in_parts(dx, dy, y):
        return
    launch(softmax_twice_backward_kernel, (y.shape[0],), dx, dy, y, y.shape[1], **_walked(y, config, 32, 2))
