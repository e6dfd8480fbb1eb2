"""Triton kernels of ``softmax``: rows in one block, in pieces, and read twice."""

from __future__ import annotations

import triton
import triton.language as tl

from tilescope_kernels._shared.online_softmax import LOG2_E, ends, exp, finite, sum_exp, whole_part
from tilescope_kernels._shared.row_tiles import aligned, columns_of, load_pieces, narrow, store_piece


@triton.jit
def merge(largest, total, other_largest, other_total):
    """Merge maximum and sum of exponentials of two sets. Each sum is relative to its set's ``finite`` maximum."""
    raised = tl.maximum(largest, other_largest)
    shift = finite(raised)
    scaled = total * tl.exp2((largest - shift) * LOG2_E)
    return raised, scaled + other_total * tl.exp2((other_largest - shift) * LOG2_E)


@triton.jit
def softmax_rows_kernel(
    y_ptr, x_ptr, x_stride, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr
):
    """``ROWS`` whole rows per program: one read, one write. ``columns`` and ``x_stride`` are multiples of ``VECTOR``."""
    x_stride = aligned(x_stride, VECTOR)
    columns = aligned(columns, VECTOR)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (column < columns)
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=float("-inf"))
    # As in PyTorch, a row of -inf becomes NaN (-inf - -inf), and a NaN makes its whole row NaN.
    largest = tl.max(x.to(tl.float32), axis=1, keep_dims=True)
    e = exp(x.to(tl.float32) - largest)
    total = tl.sum(e, axis=1, keep_dims=True)
    y = e * (1.0 / total)
    tl.store(y_ptr + row * columns + column, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["x_stride", "columns"])
def softmax_pieces_kernel(
    y_ptr, x_ptr, x_stride, columns,
    LANES: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr, SKEWED: tl.constexpr,
):  # fmt: skip
    """One row per program, in pieces of its dtype: as fp32 exponentials, two wide rows would not fit an SM.

    Each thread computes the maximum and the sum of its elements. One reduction over threads merges both. ``SKEWED`` rows of x and
    y share their misalignment: the pieces are of what aligned accesses cover, and their two ends are held apart.
    """
    row = tl.program_id(0).to(tl.int64)
    begin, before, length = whole_part(row * aligned(x_stride, 1 if SKEWED else WIDTH), columns, WIDTH, SKEWED)
    x_ptr += begin
    y_ptr += begin if SKEWED else row * aligned(columns, WIDTH)
    if SKEWED:
        offset, inside = ends(before, length, columns, WIDTH)
        end = tl.load(x_ptr + offset, mask=inside, other=float("-inf")).to(tl.float32)
    held = load_pieces(x_ptr, length, float("-inf"), LANES, WIDTH, STEPS, WHOLE, MASKED=2)
    lane_largest = tl.full((LANES,), float("-inf"), tl.float32)
    for i in tl.static_range(STEPS):
        lane_largest = tl.maximum(lane_largest, tl.max(held[i].to(tl.float32), axis=1))
    lane_shift = finite(lane_largest)
    lane_total = tl.zeros((LANES,), tl.float32)
    for i in tl.static_range(STEPS):
        lane_total += tl.sum(tl.exp2((held[i].to(tl.float32) - lane_shift[:, None]) * LOG2_E), axis=1)
    largest, total = tl.reduce((lane_largest, lane_total), 0, merge)
    if SKEWED:
        end_largest = tl.max(end, axis=0)
        end_total = tl.sum(tl.exp2((end - finite(end_largest)) * LOG2_E), axis=0)
        largest, total = merge(largest, total, end_largest, end_total)
    # The sum is infinite only if x is, and 0 only for a row of -inf. PyTorch returns NaN for both.
    less = tl.where((total == float("inf")) | (total == 0.0), float("nan"), -tl.log2(total))
    # The maximum is subtracted separately: max + log would lose the logarithm's low bits if the maximum is large.
    for i in tl.static_range(STEPS):
        y = tl.exp2((held[i].to(tl.float32) - finite(largest)) * LOG2_E + less)
        store_piece(y_ptr, y, length, i, LANES, WIDTH, STEPS, WHOLE, MASKED=2)
    if SKEWED:
        y = tl.exp2((end - finite(largest)) * LOG2_E + less)
        tl.store(y_ptr + offset, y.to(y_ptr.dtype.element_ty), mask=inside)


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
def softmax_rows_backward_kernel(
    dx_ptr, dy_ptr, y_ptr, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr
):
    """``dx = (dy - sum(dy * y)) * y`` of ``ROWS`` whole rows per program: two reads, one write."""
    columns = aligned(columns, VECTOR)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (column < columns)
    offsets = row * columns + column
    dy = tl.load(dy_ptr + offsets, mask=mask, other=0.0)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0)
    inner = tl.sum(dy.to(tl.float32) * y.to(tl.float32), axis=1, keep_dims=True)
    dx = (narrow(dy, columns).to(tl.float32) - inner) * narrow(y, columns).to(tl.float32)
    tl.store(dx_ptr + offsets, dx.to(dx_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["columns"])
def softmax_pieces_backward_kernel(
    dx_ptr, dy_ptr, y_ptr, columns,
    LANES: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr, SKEWED: tl.constexpr,
):  # fmt: skip
    """``dx`` of one row per program, in pieces (``row_tiles``). ``SKEWED`` rows are not 16-byte aligned: see the forward pass."""
    row = tl.program_id(0).to(tl.int64)
    begin, before, length = whole_part(row * aligned(columns, 1 if SKEWED else WIDTH), columns, WIDTH, SKEWED)
    dx_ptr += begin
    if SKEWED:
        offset, inside = ends(before, length, columns, WIDTH)
        dy_end = tl.load(dy_ptr + begin + offset, mask=inside, other=0.0).to(tl.float32)
        y_end = tl.load(y_ptr + begin + offset, mask=inside, other=0.0).to(tl.float32)
    dy = load_pieces(dy_ptr + begin, length, 0.0, LANES, WIDTH, STEPS, WHOLE, MASKED=2)
    y = load_pieces(y_ptr + begin, length, 0.0, LANES, WIDTH, STEPS, WHOLE, MASKED=2)
    products = tl.zeros((LANES,), tl.float32)
    for i in tl.static_range(STEPS):
        products += tl.sum(dy[i].to(tl.float32) * y[i].to(tl.float32), axis=1)
    inner = tl.sum(products, axis=0)
    if SKEWED:
        inner += tl.sum(dy_end * y_end, axis=0)
    for i in tl.static_range(STEPS):
        dx = (narrow(dy[i], columns).to(tl.float32) - inner) * narrow(y[i], columns).to(tl.float32)
        store_piece(dx_ptr, dx, length, i, LANES, WIDTH, STEPS, WHOLE, MASKED=2)
    if SKEWED:
        tl.store(dx_ptr + offset, ((dy_end - inner) * y_end).to(dx_ptr.dtype.element_ty), mask=inside)


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
