"""Rows that are not 16-byte aligned, in Gluon: the part that aligned accesses cover, and its two ends. In Triton: ``row_tiles``."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def whole_part(start, columns, WIDTH: gl.constexpr):
    """The part of a row from element ``start`` that aligned 16-byte accesses cover: the row's elements before it, and its length."""
    before = ((WIDTH - start % WIDTH) % WIDTH).to(gl.int32)
    # Division and multiplication prove the alignment to the compiler.
    return before, (columns - before) // WIDTH * WIDTH


@gluon.jit
def begin_of(row, stride, before, WIDTH: gl.constexpr, SKEWED: gl.constexpr):
    """The element where a row's ``whole_part`` begins; without ``SKEWED`` the row itself."""
    start = row.to(gl.int64) * stride
    if SKEWED:
        start = (start + before) // WIDTH * WIDTH
    return start


@gluon.jit
def ends_of(before, length, columns, WIDTH: gl.constexpr, LAYOUT: gl.constexpr):
    """Offsets (2 * WIDTH,) of a row's elements outside its ``whole_part``, relative to the part's first element, and their mask."""
    lane = gl.arange(0, 2 * WIDTH, layout=LAYOUT)
    return lane - before + gl.where(lane < before, 0, length), lane < columns - length
