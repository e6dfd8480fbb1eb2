"""Softmax's forward pass for long rows, in Gluon: a row stays in shared memory and registers between its sum and its result.

Several programs share an SM, so that one loads its row while another one computes. In Triton a row of 48 KB and more is read a second
time, from L2. Longer rows are as fast read twice, or faster, and so are rows of which a program would hold a part.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from tilescope_kernels._shared.integers import cdiv
from tilescope_kernels._shared.launches import launch
from tilescope_kernels._shared.launching import capability, shared_memory
from tilescope_kernels._shared.online_softmax import LOG2_E
from tilescope_kernels._shared.row_ends import begin_of, ends_of, whole_part

#: Initial maximum: finite, so that -inf minus it is not NaN.
_LOWEST = gl.constexpr(-3.4028234663852886e38)
#: Tiles per group of copies, which are awaited together.
_GROUP = gl.constexpr(2)
#: Warps of a program, and for rows that are not 16-byte aligned.
_WARPS, _WARPS_SKEWED = 16, 8
#: Bytes of shared memory of a program for reductions and for the system.
_OTHER = 1536
#: Most bytes of a row in registers.
_IN_REGISTERS = 16 * 1024
_NEGATIVE_INFINITY = gl.constexpr(float("-inf"))


@gluon.jit
def _merge(largest, total, other_largest, other_total):
    larger = gl.maximum(largest, other_largest)
    mine = gl.exp2((largest - larger) * LOG2_E)
    return larger, total * mine + other_total * gl.exp2((other_largest - larger) * LOG2_E)


@gluon.jit
def _add(x, largest, total):
    """Update each thread's maximum and sum of exponentials with a tile. The sum is rescaled once per tile."""
    larger = gl.maximum(largest, gl.max(x, 1))
    exponentials = gl.sum(gl.exp2((x - larger[:, None]) * LOG2_E), 1)
    return larger, total * gl.exp2((largest - larger) * LOG2_E) + exponentials


@gluon.jit
def _store(ptr, x, largest, inverse, mask):
    y = gl.exp2((x - largest) * LOG2_E) * inverse
    gl.store(ptr, y.to(ptr.dtype.element_ty), mask=mask, cache_modifier=".cs")


@gluon.jit
def _fetch(x_row, here, HELD: gl.constexpr, TAIL: gl.constexpr, TILE: gl.constexpr, SHARED: gl.constexpr):
    """Start copies of the first ``HELD`` tiles to shared memory, and load ``TAIL`` tiles. The last tile of all has the mask ``here``."""
    places = ()
    for i in gl.static_range(HELD):
        place = gl.allocate_shared_memory(x_row.dtype.element_ty, here.shape, SHARED)
        async_copy.async_copy_global_to_shared(place, x_row + i * TILE, mask=here if i == HELD + TAIL - 1 else None)
        if i % _GROUP == _GROUP - 1 or i == HELD - 1:
            async_copy.commit_group()
        places += (place,)
    tail = ()
    for i in gl.static_range(TAIL):
        mask = here if i == TAIL - 1 else None
        tail += (gl.load(x_row + (HELD + i) * TILE, mask=mask),)
    return places, tail


@gluon.jit
def _sum(places, tail, here, largest, total, LAYOUT: gl.constexpr):
    """Each thread's maximum and sum of exponentials."""
    HELD: gl.constexpr = len(places)
    for i in gl.static_range(HELD):
        if i % _GROUP == 0:
            async_copy.wait_group((HELD - 1) // _GROUP - i // _GROUP)
        x = places[i].load(LAYOUT).to(gl.float32)
        if i == HELD + len(tail) - 1:  # masked elements were not copied
            x = gl.where(here, x, _NEGATIVE_INFINITY)
        largest, total = _add(x, largest, total)
    for i in gl.static_range(len(tail)):
        x = tail[i].to(gl.float32)
        if i == len(tail) - 1:
            x = gl.where(here, x, _NEGATIVE_INFINITY)
        largest, total = _add(x, largest, total)
    return largest, total


@gluon.jit
def _write(y_row, places, tail, here, largest, inverse, TILE: gl.constexpr, LAYOUT: gl.constexpr):
    HELD: gl.constexpr = len(places)
    for i in gl.static_range(len(tail)):
        mask = here if i == len(tail) - 1 else None
        _store(y_row + (HELD + i) * TILE, tail[i].to(gl.float32), largest, inverse, mask)
    for i in gl.static_range(HELD):
        mask = here if i == HELD + len(tail) - 1 else None
        _store(y_row + i * TILE, places[i].load(LAYOUT).to(gl.float32), largest, inverse, mask)


@gluon.jit
def softmax_held_kernel(
    y_ptr, x_ptr, x_stride, columns,
    HELD: gl.constexpr, TAIL: gl.constexpr, WIDTH: gl.constexpr, SKEWED: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """One row per program, in tiles of 16 bytes per thread: ``HELD`` in shared memory and ``TAIL`` in registers.

    ``columns`` and ``x_stride`` are multiples of ``WIDTH``, or rows of x and y are ``SKEWED``: contiguous but not 16-byte aligned.
    Tiles are then of what aligned accesses of the row cover, and its two ends are held apart.
    """
    LANES: gl.constexpr = 32 * num_warps
    TILE: gl.constexpr = LANES * WIDTH
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, WIDTH], [32, 1], [num_warps, 1], [1, 0])
    LANE: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    SHARED: gl.constexpr = gl.SwizzledSharedLayout(WIDTH, 1, 1, [1, 0])
    row = gl.program_id(0).to(gl.int64)
    # Division and multiplication prove the alignment to the compiler.
    length = columns // WIDTH * WIDTH
    x_start = row * (x_stride // WIDTH * WIDTH)
    y_start = row * length
    if SKEWED:
        before, length = whole_part(row * columns, columns, WIDTH)
        x_start = begin_of(row, columns, before, WIDTH, True)
        y_start = x_start
    lane = gl.arange(0, LANES, layout=LANE)[:, None]
    offsets = lane * WIDTH + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    here = (HELD + TAIL - 1) * TILE + offsets < length
    places, tail = _fetch(x_ptr + x_start + offsets, here, HELD, TAIL, TILE, SHARED)
    if SKEWED:
        end, at_end = ends_of(before, length, columns, WIDTH, gl.BlockedLayout([1], [32], [num_warps], [0]))
        ends = gl.load(x_ptr + x_start + end, mask=at_end, other=float("-inf")).to(gl.float32)
    largest = gl.full([LANES], _LOWEST, gl.float32, LANE)
    total = gl.zeros([LANES], gl.float32, LANE)
    largest, total = _sum(places, tail, here, largest, total, LAYOUT)
    largest, total = gl.reduce((largest, total), 0, _merge)
    if SKEWED:
        largest_end = gl.maximum(gl.max(ends, 0), _LOWEST)
        total_end = gl.sum(gl.exp2((ends - largest_end) * LOG2_E), 0)
        largest, total = _merge(largest, total, largest_end, total_end)
    # The sum is infinite only if x is, and 0 only for a row of -inf, where 0 * (1 / 0) is NaN. PyTorch returns NaN for both.
    inverse = gl.where(total == float("inf"), float("nan"), 1.0 / total)
    _write(y_ptr + y_start + offsets, places, tail, here, largest, inverse, TILE, LAYOUT)
    if SKEWED:
        _store(y_ptr + y_start + end, ends, largest, inverse, at_end)


def softmax_with_held_rows(y: torch.Tensor, x: torch.Tensor, skewed: bool) -> bool:
    """Fill y and return True, or return False if two programs with such rows do not fit an SM."""
    rows, columns = x.shape
    width = 16 // x.element_size()
    if capability(x) < 80 or x.data_ptr() % 16 or not (skewed or columns % width == x.stride(0) % width == 0):
        return False
    warps = _WARPS_SKEWED if skewed else _WARPS
    tile = 512 * warps
    tiles = cdiv(columns // width * 16, tile)
    held = min(tiles, (shared_memory(x) // 2 - _OTHER) // tile)
    if (tiles - held) * tile > _IN_REGISTERS:
        return False
    launch(
        softmax_held_kernel, (rows,),
        y, x, x.stride(0), columns,
        HELD=held, TAIL=tiles - held, WIDTH=width, SKEWED=skewed, num_warps=warps,
    )  # fmt: skip
    return True
