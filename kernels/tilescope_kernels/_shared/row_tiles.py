"""Rows held in registers as pieces of 16 bytes a thread, for passes that read a row once.

One block of the next power of two has idle lanes, of 5120 columns nearly two in five, and a mask for every element. Of
pieces only the last one is masked, and none where they fill the row: LayerNorm of 13000x5120 in bf16 took 93 us in a
block and 69 in pieces, that of 16384x4096 74 and 69 (a copy: 66 and 67; H200, 2026-11-22, torch 2.11, triton 3.6).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

#: Columns from which a program holds one row in pieces. Several shorter rows are one program's.
_LEAST = 2049


@triton.jit
def aligned(count, WIDTH: tl.constexpr):
    """``count``, known to be a multiple of ``WIDTH``, so that the compiler knows it too and accesses 16 bytes at once."""
    return count // WIDTH * WIDTH


@triton.jit
def columns_of(PIECE: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr):
    """Columns (LANES, WIDTH) of a row's piece."""
    return PIECE * LANES * WIDTH + tl.arange(0, LANES)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]


@triton.jit
def load_piece(
    x_ptr, columns, other, PIECE: tl.constexpr,
    LANES: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr, KEEP: tl.constexpr = False,
):  # fmt: skip
    """One piece of a row, with ``other`` beyond its end. ``KEEP`` asks the caches for it, which other programs will read."""
    policy: tl.constexpr = "evict_last" if KEEP else ""
    column = columns_of(PIECE, LANES, WIDTH)
    if WHOLE or PIECE + 1 < STEPS:
        x = tl.load(x_ptr + column, eviction_policy=policy)
    else:
        x = tl.load(x_ptr + column, mask=column < aligned(columns, WIDTH), other=other, eviction_policy=policy)
    return x


@triton.jit
def load_pieces(
    x_ptr, columns, other,
    LANES: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr, KEEP: tl.constexpr = False,
):  # fmt: skip
    """All of a row's pieces, asked for at once, as ``load_piece``."""
    held = ()
    for i in tl.static_range(STEPS):
        held += (load_piece(x_ptr, columns, other, i, LANES, WIDTH, STEPS, WHOLE, KEEP),)
    return held


@triton.jit
def zero_beyond(
    x, columns, PIECE: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr
):
    """A piece with zeros beyond its row's end."""
    if not WHOLE and PIECE + 1 == STEPS:
        x = tl.where(columns_of(PIECE, LANES, WIDTH) < columns, x, 0.0)
    return x


@triton.jit
def narrow(x, columns):
    """``x`` as it was read, for values in fp32 to be made of it once more after a sum over their row of ``columns``.

    Otherwise the compiler sees one conversion and keeps fp32 values while threads wait for the sum: twice the registers,
    so half the programs a multiprocessor. Softmax's backward pass of 8192x16384 in bf16 took 195 us and takes 190, an
    addition 188 (H200, 2026-11-23, torch 2.11, triton 3.6). fp32 is itself.
    """
    if x.dtype.primitive_bitwidth == 16:
        # 0, which the compiler cannot know: it takes the count for one that may be negative.
        nothing = (tl.full((), 0, tl.int32) + columns) >> 31
        x = (x.to(tl.int16, bitcast=True) ^ nothing.to(tl.int16)).to(x.dtype, bitcast=True)
    return x


@triton.jit
def store_piece(
    y_ptr, y, columns, PIECE: tl.constexpr,
    LANES: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Writes one piece, in the dtype of ``y_ptr``."""
    column = columns_of(PIECE, LANES, WIDTH)
    if WHOLE or PIECE + 1 < STEPS:
        tl.store(y_ptr + column, y.to(y_ptr.dtype.element_ty))
    else:
        tl.store(y_ptr + column, y.to(y_ptr.dtype.element_ty), mask=column < aligned(columns, WIDTH))


def in_pieces(x: torch.Tensor, options: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]] | None:
    """LANES, WIDTH, STEPS and WHOLE for the rows of ``x``, and launch options; None where a block serves them better.

    That is where rows are short, or do not start at 16 bytes. ``num_warps`` of ``options`` prevails.
    """
    columns = x.shape[1]
    width = 16 // x.element_size()
    if columns < _LEAST or columns % width or x.stride(0) % width:
        return None
    # At 16 warps, two programs with rows of 16384 in 16 bits share a multiprocessor.
    long = 32 if columns * x.element_size() > 64 * 1024 else 16
    warps = 4 if columns < 4096 else 8 if columns <= 12288 else long
    if warps < 32:  # fewer idle lanes are worth more than fewer pieces
        warps = min((warps, warps // 2), key=lambda few: triton.cdiv(columns, 32 * few * width) * few)
    chosen = {"num_warps": warps, **options}
    step = 32 * chosen["num_warps"] * width
    pieces = {
        "LANES": step // width,
        "WIDTH": width,
        "STEPS": triton.cdiv(columns, step),
        "WHOLE": columns % step == 0,
    }
    return pieces, chosen
