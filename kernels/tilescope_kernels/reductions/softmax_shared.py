"""Softmax's kernels for rows that are cut into parts, in Gluon: parts of several rows wait in shared memory."""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from tilescope_kernels._shared.online_softmax import LOG2_E
from tilescope_kernels._shared.row_ring import ask_sums, await_sums, copy_part, place_of, publish_sums, ring


@gluon.jit
def _finite(largest):
    """The maximum as a shift: 0 instead of an infinity, whose difference from itself is NaN."""
    return gl.where((largest == float("inf")) | (largest == float("-inf")), 0.0, largest)


@gluon.jit
def _merge(largest, total, other_largest, other_total):
    raised = gl.maximum(largest, other_largest)
    shift = _finite(raised)
    scaled = total * gl.exp2((largest - shift) * LOG2_E)
    return raised, scaled + other_total * gl.exp2((other_largest - shift) * LOG2_E)


@gluon.jit
def softmax_parts_shared_kernel(
    y_ptr, words_ptr, x_ptr, x_stride, rows, columns, parts,
    BLOCK: gl.constexpr, WIDTH: gl.constexpr, WHOLE: gl.constexpr, AHEAD: gl.constexpr, LAG: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """While a part of one row is summed up, the next ``AHEAD`` rows are copied, and ``LAG`` rows await their sums.

    Parts need no mask if they are ``WHOLE``. ``columns`` and ``x_stride`` are multiples of 16.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([WIDTH], [32], [num_warps], [0])
    EACH: gl.constexpr = gl.BlockedLayout([1], [32], [num_warps], [0])
    SHARED: gl.constexpr = gl.SwizzledSharedLayout(WIDTH, 1, 1, [0])
    SLOTS: gl.constexpr = AHEAD + 1 + LAG
    xs = gl.allocate_shared_memory(x_ptr.dtype.element_ty, [SLOTS, BLOCK], SHARED)
    part, group, groups = place_of(parts)
    first = part * BLOCK
    inside = columns - first
    column = gl.arange(0, BLOCK, layout=LAYOUT)
    valid = column < inside
    mask = None if WHOLE else valid
    for i in gl.static_range(AHEAD):
        row = (group + i * groups).to(gl.int64)
        copy_part(xs.index(i), x_ptr + row * x_stride + first, inside, row < rows, WHOLE, LAYOUT)
        async_copy.commit_group()
    slot = group * 0
    for row in range(group, rows + LAG * groups, groups):
        async_copy.wait_group(AHEAD - 1)
        late = row - LAG * groups
        place, word = ask_sums(words_ptr, parts, late, late >= 0, 32 * num_warps, EACH)
        ahead = (row + AHEAD * groups).to(gl.int64)
        free = (slot + AHEAD) % SLOTS
        copy_part(xs.index(free), x_ptr + ahead * x_stride + first, inside, ahead < rows, WHOLE, LAYOUT)
        async_copy.commit_group()
        if row < rows:
            x = xs.index(slot).load(LAYOUT).to(gl.float32)
            if not WHOLE:  # Nothing was copied there.
                x = gl.where(valid, x, float("-inf"))
            largest = gl.max(x, 0)
            total = gl.sum(gl.exp2((x - _finite(largest)) * LOG2_E), 0)
            publish_sums(words_ptr + row.to(gl.int64) * parts + part, largest, total)
        if late >= 0:
            maxima, totals = await_sums(place, word)
            exist = gl.arange(0, 32 * num_warps, layout=EACH) < parts
            maxima = gl.where(exist, maxima, float("-inf"))
            largest, total = gl.reduce((maxima, totals), 0, _merge)
            # Infinite only where x is, and 0 only for a row of -inf, both of which are NaN in PyTorch.
            undefined = (total == float("inf")) | (total == 0.0)
            offset = gl.where(undefined, float("nan"), -gl.log2(total))
            # The maximum is subtracted apart: beside large numbers, its sum with the logarithm would be rounded too coarsely.
            x = xs.index((slot + AHEAD + 1) % SLOTS).load(LAYOUT).to(gl.float32)
            y = gl.exp2((x - _finite(largest)) * LOG2_E + offset)
            gl.store(y_ptr + late.to(gl.int64) * columns + first + column, y.to(y_ptr.dtype.element_ty), mask=mask)
        slot = (slot + 1) % SLOTS


@gluon.jit
def softmax_parts_backward_shared_kernel(
    dx_ptr, words_ptr, dy_ptr, y_ptr, rows, columns, parts,
    BLOCK: gl.constexpr, WIDTH: gl.constexpr, WHOLE: gl.constexpr, AHEAD: gl.constexpr, LAG: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """``dx = (dy - sum(dy * y)) * y``, as above."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([WIDTH], [32], [num_warps], [0])
    EACH: gl.constexpr = gl.BlockedLayout([1], [32], [num_warps], [0])
    SHARED: gl.constexpr = gl.SwizzledSharedLayout(WIDTH, 1, 1, [0])
    SLOTS: gl.constexpr = AHEAD + 1 + LAG
    ys = gl.allocate_shared_memory(y_ptr.dtype.element_ty, [SLOTS, BLOCK], SHARED)
    dys = gl.allocate_shared_memory(dy_ptr.dtype.element_ty, [SLOTS, BLOCK], SHARED)
    part, group, groups = place_of(parts)
    first = part * BLOCK
    inside = columns - first
    column = gl.arange(0, BLOCK, layout=LAYOUT)
    valid = column < inside
    mask = None if WHOLE else valid
    for i in gl.static_range(AHEAD):
        row = (group + i * groups).to(gl.int64)
        start = row * columns + first
        copy_part(ys.index(i), y_ptr + start, inside, row < rows, WHOLE, LAYOUT)
        copy_part(dys.index(i), dy_ptr + start, inside, row < rows, WHOLE, LAYOUT)
        async_copy.commit_group()
    slot = group * 0
    for row in range(group, rows + LAG * groups, groups):
        async_copy.wait_group(AHEAD - 1)
        late = row - LAG * groups
        place, word = ask_sums(words_ptr, parts, late, late >= 0, 32 * num_warps, EACH)
        ahead = (row + AHEAD * groups).to(gl.int64)
        free = (slot + AHEAD) % SLOTS
        start = ahead * columns + first
        copy_part(ys.index(free), y_ptr + start, inside, ahead < rows, WHOLE, LAYOUT)
        copy_part(dys.index(free), dy_ptr + start, inside, ahead < rows, WHOLE, LAYOUT)
        async_copy.commit_group()
        if row < rows:
            products = dys.index(slot).load(LAYOUT).to(gl.float32) * ys.index(slot).load(LAYOUT).to(gl.float32)
            if not WHOLE:  # Nothing was copied there.
                products = gl.where(valid, products, 0.0)
            inner = gl.sum(products, 0)
            publish_sums(words_ptr + row.to(gl.int64) * parts + part, inner, inner * 0.0)
        if late >= 0:
            inners, _ = await_sums(place, word)
            inner = gl.sum(inners, 0)
            then = (slot + AHEAD + 1) % SLOTS
            dx = (dys.index(then).load(LAYOUT).to(gl.float32) - inner) * ys.index(then).load(LAYOUT).to(gl.float32)
            gl.store(dx_ptr + late.to(gl.int64) * columns + first + column, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        slot = (slot + 1) % SLOTS


def softmax_in_ring(y: torch.Tensor, x: torch.Tensor, *plan: int) -> bool:
    """Fill y, if the rows of x can be cut as ``plan`` says; whether they could."""
    found = ring((x,), *plan)
    if found:
        rows, columns = x.shape
        softmax_parts_shared_kernel[found.grid](
            y, found.words, x, x.stride(0), rows, columns, found.parts, **found.parameters, **found.options
        )
    return found is not None


def softmax_backward_in_ring(dx: torch.Tensor, dy: torch.Tensor, y: torch.Tensor, *plan: int) -> bool:
    """Fill dx, if the rows of dy and y can be cut as ``plan`` says; whether they could."""
    found = ring((y, dy), *plan)
    if found:
        rows, columns = y.shape
        softmax_parts_backward_shared_kernel[found.grid](
            dx, found.words, dy, y, rows, columns, found.parts, **found.parameters, **found.options
        )
    return found is not None
