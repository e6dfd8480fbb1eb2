"""Row tiles: a row held in registers as pieces of 16 bytes per thread, so that a pass reads it once.

A single block must be a power of two: it masks every element and leaves lanes idle, for 5120 columns nearly two in five.
With pieces only the last one or two are masked, or none if they fill the row.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.launching import cdiv
from tilescope_kernels.spec import Config

#: Fewest columns of a row in pieces. Shorter rows share a program.
_LEAST = 2049


@triton.jit
def aligned(count, WIDTH: tl.constexpr):
    """``count``, a multiple of ``WIDTH``, in a form that proves it to the compiler, which then uses 16-byte accesses."""
    return count // WIDTH * WIDTH


@triton.jit
def columns_of(PIECE: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr):
    """Columns (LANES, WIDTH) of a piece of a row."""
    return PIECE * LANES * WIDTH + tl.arange(0, LANES)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]


@triton.jit
def load_piece(
    x_ptr, columns, other, PIECE: tl.constexpr,
    LANES: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr, KEEP: tl.constexpr = False,
    MASKED: tl.constexpr = 1,
):  # fmt: skip
    """Load a piece of a row, with ``other`` beyond the row's end: in the last ``MASKED`` pieces, unless the row is ``WHOLE`` pieces.

    ``KEEP`` asks the caches to keep it for other programs.
    """
    policy: tl.constexpr = "evict_last" if KEEP else ""
    column = columns_of(PIECE, LANES, WIDTH)
    if WHOLE or PIECE + MASKED < STEPS:
        x = tl.load(x_ptr + column, eviction_policy=policy)
    else:
        x = tl.load(x_ptr + column, mask=column < aligned(columns, WIDTH), other=other, eviction_policy=policy)
    return x


@triton.jit
def load_pieces(
    x_ptr, columns, other,
    LANES: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr, KEEP: tl.constexpr = False,
    MASKED: tl.constexpr = 1,
):  # fmt: skip
    """Load all pieces of a row, as ``load_piece`` does."""
    held = ()
    for i in tl.static_range(STEPS):
        held += (load_piece(x_ptr, columns, other, i, LANES, WIDTH, STEPS, WHOLE, KEEP, MASKED),)
    return held


@triton.jit
def narrow(x, columns):
    """``x`` unchanged, but opaque to the compiler, so that 16-bit ``x`` is converted to fp32 again after a row reduction.

    Otherwise the compiler keeps the fp32 values across the reduction, which takes twice the registers and halves the
    occupancy. fp32 ``x`` is returned as it is.
    """
    if x.dtype.primitive_bitwidth == 16:
        # Always 0, but the compiler must assume that ``columns`` may be negative.
        nothing = (tl.full((), 0, tl.int32) + columns) >> 31
        x = (x.to(tl.int16, bitcast=True) ^ nothing.to(tl.int16)).to(x.dtype, bitcast=True)
    return x


@triton.jit
def store_piece(
    y_ptr, y, columns, PIECE: tl.constexpr,
    LANES: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr, MASKED: tl.constexpr = 1,
):  # fmt: skip
    """Store a piece of a row, in the dtype of ``y_ptr``."""
    column = columns_of(PIECE, LANES, WIDTH)
    if WHOLE or PIECE + MASKED < STEPS:
        tl.store(y_ptr + column, y.to(y_ptr.dtype.element_ty))
    else:
        tl.store(y_ptr + column, y.to(y_ptr.dtype.element_ty), mask=column < aligned(columns, WIDTH))


@triton.jit
def whole_part(start, columns, WIDTH: tl.constexpr, SKEWED: tl.constexpr):
    """The part of a row that aligned 16-byte accesses cover: its first element, the elements before it, and its length.

    The row begins at element ``start``. If rows are 16-byte aligned the part is the whole row. ``SKEWED`` rows are not, and
    have a rest at either end. In a short row the part may be empty, and then begins beyond the row.
    """
    if SKEWED:
        before = ((WIDTH - start % WIDTH) % WIDTH).to(tl.int32)
        # Division and multiplication prove the alignment to the compiler, which would else access single elements.
        begin = (start + before) // WIDTH * WIDTH
        length = tl.maximum(columns - before, 0) // WIDTH * WIDTH
    else:
        before = 0
        begin = start
        length = columns
    return begin, before, length


@triton.jit
def ends(before, length, columns, WIDTH: tl.constexpr):
    """Offsets (2 * WIDTH,) of a row's elements outside its ``whole_part``, relative to the part's first element, and their mask."""
    lane = tl.arange(0, 2 * WIDTH)
    return lane - before + tl.where(lane < before, 0, length), lane < columns - length


def vector(x: torch.Tensor) -> int:
    """The ``WIDTH`` that ``aligned`` needs for 16-byte accesses to the rows of ``x``, in elements; 1 if it is not needed.

    Triton specializes on extents that are multiples of 16 elements, so fewer must be proved. Rows that are not 16-byte
    aligned have no such accesses.
    """
    columns, stride, width = x.shape[1], x.stride(0), 16 // x.element_size()
    known = columns % 16 == stride % 16 == 0
    return 1 if known or columns % width or stride % width else width


def skewed(x: torch.Tensor) -> bool:
    """Whether rows are contiguous but not 16-byte aligned, so that those of all operands share their misalignment.

    Blocks and pieces access such rows one element at a time, which takes twice to three times as long.
    """
    return x.stride(0) == x.shape[1] and x.shape[1] * x.element_size() % 16 > 0


def in_pieces(x: torch.Tensor, asked: int | None = None) -> Config | None:
    """Kernel parameters (LANES, WIDTH, STEPS, WHOLE) and warps for the rows of ``x`` in pieces. ``asked`` overrides the warps.

    None where a block is faster: for short rows, and for rows that are not 16-byte aligned.
    """
    columns, size = x.shape[1], x.element_size()
    width = 16 // size
    if columns < _LEAST or columns % width or x.stride(0) % width:
        return None
    return pieces_of(columns, size, asked)


@functools.cache
def pieces_of(columns: int, size: int, asked: int | None) -> Config:
    """As ``in_pieces``, for rows of ``columns`` elements of ``size`` bytes."""
    width = 16 // size
    # With 16 warps, two programs with rows of 16384 in 16 bits fit an SM.
    long = 32 if columns * size > 64 * 1024 else 16
    warps = 4 if columns < 4096 else 8 if columns <= 12288 else long
    if warps < 32:  # fewer idle lanes win over fewer pieces
        warps = min((warps, warps // 2), key=lambda few: cdiv(columns, 32 * few * width) * few)
    warps = asked or warps
    step = 32 * warps * width
    pieces = {"LANES": step // width, "WIDTH": width, "STEPS": cdiv(columns, step), "WHOLE": columns % step == 0}
    return {**pieces, "num_warps": warps}
