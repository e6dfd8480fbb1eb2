"""Softmax's backward pass for rows split into parts, in Gluon, with a ring of rows in shared memory (``row_ring``).

2048x65536 in bf16 took 285 us and takes 278, 1024x131072 370 and 274: 96 and 98 % of a copy's bandwidth. 4096x32768, whose rows
fit one program, takes 266 in one program and 280 in parts. The forward pass is faster with a second read from L2: 191 us
against 196 (kernel durations, H100, 2026-11-25, torch 2.11, triton 3.6).
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from tilescope_kernels._shared.launches import launch
from tilescope_kernels._shared.row_ring import ask_sums, await_sums, copy_part, place_of, publish_sums, ring


@gluon.jit
def softmax_parts_backward_shared_kernel(
    dx_ptr, words_ptr, dy_ptr, y_ptr, rows, columns, parts,
    BLOCK: gl.constexpr, WIDTH: gl.constexpr, WHOLE: gl.constexpr, AHEAD: gl.constexpr, LAG: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """``dx = (dy - sum(dy * y)) * y`` of a part of rows ``group, group + groups, ...``.

    ``AHEAD`` rows are prefetched, and ``LAG`` rows wait for their other parts' sums. ``WHOLE`` parts need no mask. ``columns``
    is a multiple of 16.
    """
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
            if not WHOLE:  # masked elements were not copied
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


_PLAN = (4096, 4, 4, 3, 2)


def softmax_backward_in_parts(dx: torch.Tensor, dy: torch.Tensor, y: torch.Tensor) -> bool:
    """Fill dx and return True, or return False if the rows cannot be split."""
    found = ring((y, dy), _PLAN)
    if found:
        rows, columns = y.shape
        launch(
            softmax_parts_backward_shared_kernel, found.grid,
            dx, found.words, dy, y, rows, columns, found.parts,
            **found.parameters, **found.options,
        )  # fmt: skip
    return found is not None
