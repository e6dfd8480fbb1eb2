"""Softmax's backward pass for rows split into parts, in Gluon, with a ring of rows in shared memory (``row_ring``).

Rows that fit one program are faster in one program than in parts. The forward pass is faster with a second read from L2.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from tilescope_kernels._shared.launches import launch
from tilescope_kernels._shared.row_ring import (
    ask_sums,
    await_sums,
    begin_of,
    copy_part,
    ends_of,
    place_of,
    publish_sums,
    ring,
    whole_part,
)


@gluon.jit
def _ends(dy_ptr, y_ptr, offsets, mask):
    """Both operands of a row's ends, in fp32; 0 where there are none."""
    return gl.load(dy_ptr + offsets, mask=mask, other=0.0).to(gl.float32), gl.load(
        y_ptr + offsets, mask=mask, other=0.0
    ).to(gl.float32)


@gluon.jit
def softmax_parts_backward_shared_kernel(  # noqa: PLR0915 - each line twice, for the parts and the ends
    dx_ptr, words_ptr, dy_ptr, y_ptr, rows, columns, parts,
    BLOCK: gl.constexpr, WIDTH: gl.constexpr, WHOLE: gl.constexpr, AHEAD: gl.constexpr, LAG: gl.constexpr,
    LANES: gl.constexpr, num_warps: gl.constexpr, SKEWED: gl.constexpr = False,
):  # fmt: skip
    """``dx = (dy - sum(dy * y)) * y`` of a part of rows ``group, group + groups, ...``.

    ``AHEAD`` rows are prefetched, and ``LAG`` rows wait for their other parts' sums. ``WHOLE`` parts need no mask. ``columns``
    is a multiple of 16, or rows are ``SKEWED``: not 16-byte aligned. Then the parts are of the row's aligned accesses, the first
    part has its two ends, and all rows of a group have the same misalignment.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([WIDTH], [32], [num_warps], [0])
    EACH: gl.constexpr = gl.BlockedLayout([1], [32], [num_warps], [0])
    SHARED: gl.constexpr = gl.SwizzledSharedLayout(WIDTH, 1, 1, [0])
    SLOTS: gl.constexpr = AHEAD + 1 + LAG
    ys = gl.allocate_shared_memory(y_ptr.dtype.element_ty, [SLOTS, BLOCK], SHARED)
    dys = gl.allocate_shared_memory(dy_ptr.dtype.element_ty, [SLOTS, BLOCK], SHARED)
    part, group, groups = place_of(parts)
    first = part * BLOCK
    before = 0
    inside = columns - first
    if SKEWED:
        before, length = whole_part(group.to(gl.int64) * columns, columns, WIDTH)
        inside = length - first
        end, at_end = ends_of(before, length, columns, WIDTH, EACH)
        at_end = at_end & (part == 0)
        start = begin_of(group, columns, before, WIDTH, SKEWED)
        next_dy_end, next_y_end = _ends(dy_ptr + start, y_ptr + start, end, at_end)
    column = gl.arange(0, BLOCK, layout=LAYOUT)
    valid = column < inside
    mask = None if WHOLE else valid
    for i in gl.static_range(AHEAD):
        row = group + i * groups
        start = begin_of(row, columns, before, WIDTH, SKEWED) + first
        copy_part(ys.index(i), y_ptr + start, inside, row < rows, WHOLE, LAYOUT)
        copy_part(dys.index(i), dy_ptr + start, inside, row < rows, WHOLE, LAYOUT)
        async_copy.commit_group()
    slot = group * 0
    for row in range(group, rows + LAG * groups, groups):
        async_copy.wait_group(AHEAD - 1)
        late = row - LAG * groups
        place, word = ask_sums(words_ptr, parts, late, late >= 0, LANES, EACH)
        late_start = begin_of(late, columns, before, WIDTH, SKEWED)
        ahead = row + AHEAD * groups
        free = (slot + AHEAD) % SLOTS
        start = begin_of(ahead, columns, before, WIDTH, SKEWED) + first
        copy_part(ys.index(free), y_ptr + start, inside, ahead < rows, WHOLE, LAYOUT)
        copy_part(dys.index(free), dy_ptr + start, inside, ahead < rows, WHOLE, LAYOUT)
        async_copy.commit_group()
        if SKEWED:
            dy_end = next_dy_end
            y_end = next_y_end
            start = begin_of(row + groups, columns, before, WIDTH, SKEWED)
            next_dy_end, next_y_end = _ends(dy_ptr + start, y_ptr + start, end, at_end & (row + groups < rows))
            late_dy, late_y = _ends(dy_ptr + late_start, y_ptr + late_start, end, at_end & (late >= 0))
        if row < rows:
            products = dys.index(slot).load(LAYOUT).to(gl.float32) * ys.index(slot).load(LAYOUT).to(gl.float32)
            if not WHOLE:  # masked elements were not copied
                products = gl.where(valid, products, 0.0)
            inner = gl.sum(products, 0)
            if SKEWED:
                inner += gl.sum(dy_end * y_end, 0)
            publish_sums(words_ptr + row.to(gl.int64) * parts + part, inner, inner * 0.0)
        if late >= 0:
            inners, _ = await_sums(place, word)
            inner = gl.sum(inners, 0)
            then = (slot + AHEAD + 1) % SLOTS
            dx = (dys.index(then).load(LAYOUT).to(gl.float32) - inner) * ys.index(then).load(LAYOUT).to(gl.float32)
            gl.store(dx_ptr + late_start + first + column, dx.to(dx_ptr.dtype.element_ty), mask=mask)
            if SKEWED:
                dx_end = (late_dy - inner) * late_y
                gl.store(dx_ptr + late_start + end, dx_end.to(dx_ptr.dtype.element_ty), mask=at_end)
        slot = (slot + 1) % SLOTS


#: The fastest of twelve plans, or within 2 % of it.
_PLAN = (4096, 4, 4, 2, 3)


def softmax_backward_in_parts(dx: torch.Tensor, dy: torch.Tensor, y: torch.Tensor) -> bool:
    """Fill dx and return True, or return False if the rows cannot be split."""
    found = ring((y, dy), _PLAN, skewed=True)
    if found:
        rows, columns = y.shape
        launch(
            softmax_parts_backward_shared_kernel, found.grid,
            dx, found.words, dy, y, rows, columns, found.parts,
            **found.parameters, **found.options,
        )  # fmt: skip
    return found is not None
