"""Triton kernels of ``quantize``: one per granularity, two for one scale per tensor, and one for long rows."""

from __future__ import annotations

import triton
import triton.language as tl

#: Length of a block and side of a tile, in elements.
GROUP = 128
#: The least magnitude of a group, so that a group of zeros does not divide by zero.
SMALLEST = 1e-30
_SMALLEST = tl.constexpr(SMALLEST)
_GROUP = tl.constexpr(GROUP)
#: 1.5 * 2^23: added to a number below 2^22, the fp32 sum has no fraction bits, so it is rounded half to even, and its low
#: byte is the integer in two's complement.
_ROUNDER = tl.constexpr(12582912.0)


@triton.jit
def _codes(x, inverse, kind: tl.constexpr):
    """Round ``x * inverse`` (fp32) half to even to ``kind``, int8 or float8e4nv. As int8 a NaN is 0."""
    if kind == tl.int8:
        rounded = x.to(tl.float32) * inverse + _ROUNDER
        # The low byte of a GPU's NaN is -1.
        rounded = tl.where(rounded == rounded, rounded, 0.0)  # noqa: PLR0124 (only NaN differs from itself)
        return rounded.to(tl.int32, bitcast=True).to(tl.int8)
    else:
        return (x.to(tl.float32) * inverse).to(kind)


@triton.jit
def quantize_rows_kernel(
    q_ptr, scale_ptr, x_ptr, x_stride, rows, columns, LARGEST: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Quantize ``ROWS`` whole rows per program, kept in registers in their own dtype: one read, one write."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (column < columns)
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0, eviction_policy="evict_first")
    # Magnitudes in the dtype of x: from fp32 x, the compiler would keep the fp32 copy in registers for the codes.
    absmax = tl.maximum(tl.max(tl.abs(x), axis=1, keep_dims=True).to(tl.float32), _SMALLEST)
    q = _codes(x, LARGEST / absmax, q_ptr.dtype.element_ty)
    tl.store(q_ptr + row * columns + column, q, mask=mask)
    tl.store(scale_ptr + row, absmax / LARGEST, mask=row < rows)


@triton.jit
def quantize_long_rows_kernel(q_ptr, scale_ptr, x_ptr, x_stride, columns, LARGEST: tl.constexpr, BLOCK: tl.constexpr):
    """Quantize one row per program, in blocks: two reads, the second from L2 if the rows fit, and one write."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_stride
    q_ptr += row * columns
    offsets = tl.arange(0, BLOCK)
    largest = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        x = tl.load(x_ptr + start + offsets, mask=start + offsets < columns, other=0.0)
        largest = tl.maximum(largest, tl.abs(x).to(tl.float32))
    absmax = tl.maximum(tl.max(largest, axis=0), _SMALLEST)
    # Walk backwards: the row's end was read last and is most likely still in cache.
    blocks = tl.cdiv(columns, BLOCK)
    for block in range(0, blocks):
        start = (blocks - 1 - block) * BLOCK
        mask = start + offsets < columns
        x = tl.load(x_ptr + start + offsets, mask=mask, other=0.0, eviction_policy="evict_first")
        tl.store(q_ptr + start + offsets, _codes(x, LARGEST / absmax, q_ptr.dtype.element_ty), mask=mask)
    tl.store(scale_ptr + row, absmax / LARGEST)


@triton.jit
def block_addresses(groups, columns, GROUPS: tl.constexpr):
    """Rows, columns and mask of ``GROUPS`` blocks of 1x128, and the blocks' indices, row by row."""
    # Division is cheap in 32 bits, which are enough for the blocks of 2^38 elements.
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)[:, None]
    a_row = tl.cdiv(columns, _GROUP)
    column = group % a_row * _GROUP + tl.arange(0, _GROUP)[None, :]
    return (group // a_row).to(tl.int64), column, (group < groups) & (column < columns), group


@triton.jit
def quantize_blocks_kernel(
    q_ptr, scale_ptr, x_ptr, x_stride, groups, columns, LARGEST: tl.constexpr, GROUPS: tl.constexpr
):
    """Quantize ``GROUPS`` blocks of 1x128 per program."""
    row, column, mask, group = block_addresses(groups, columns, GROUPS)
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0, eviction_policy="evict_first")
    absmax = tl.maximum(tl.max(tl.abs(x), axis=1, keep_dims=True).to(tl.float32), _SMALLEST)
    q = _codes(x, LARGEST / absmax, q_ptr.dtype.element_ty)
    tl.store(q_ptr + row * columns + column, q, mask=mask)
    tl.store(scale_ptr + group, absmax / LARGEST, mask=group < groups)


@triton.jit
def quantize_tiles_kernel(q_ptr, scale_ptr, x_ptr, x_stride, rows, columns, LARGEST: tl.constexpr, TILES: tl.constexpr):
    """Quantize ``TILES`` adjacent tiles of 128x128 per program."""
    row = tl.program_id(1).to(tl.int64) * _GROUP + tl.arange(0, _GROUP)[:, None]
    a_row = tl.cdiv(columns, _GROUP)
    for step in tl.static_range(TILES):
        tile = tl.program_id(0) * TILES + step
        column = tile * _GROUP + tl.arange(0, _GROUP)[None, :]
        mask = (row < rows) & (column < columns)
        x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0, eviction_policy="evict_first")
        absmax = tl.maximum(tl.max(tl.max(tl.abs(x), axis=1), axis=0).to(tl.float32), _SMALLEST)
        q = _codes(x, LARGEST / absmax, q_ptr.dtype.element_ty)
        tl.store(q_ptr + row * columns + column, q, mask=mask)
        tl.store(scale_ptr + tl.program_id(1) * a_row + tile, absmax / LARGEST, mask=tile < a_row)


@triton.jit
def _tensor_blocks(piece, x_stride, groups, columns, GROUPS: tl.constexpr, FLAT: tl.constexpr):
    """Offsets in x and q, and mask, of the ``GROUPS`` blocks of a piece: 128 adjacent elements if ``FLAT``, else of one row."""
    group = piece * GROUPS + tl.arange(0, GROUPS)[:, None]
    within = tl.arange(0, _GROUP)[None, :]
    if FLAT:
        offset = group.to(tl.int64) * _GROUP + within
        place = offset
        mask = group < groups
    else:
        a_row = tl.cdiv(columns, _GROUP)
        column = group % a_row * _GROUP + within
        row = (group // a_row).to(tl.int64)
        offset = row * x_stride + column
        place = row * columns + column
        mask = (group < groups) & (column < columns)
    return offset, place, mask


@triton.jit
def absmax_kernel(partial_ptr, x_ptr, x_stride, groups, columns, tail, GROUPS: tl.constexpr, FLAT: tl.constexpr):
    """Largest magnitude of pieces ``program, program + programs, ...``, each of ``GROUPS`` blocks of 128 elements.

    ``FLAT``: x is contiguous, and ``tail`` elements follow its ``groups`` blocks.
    """
    largest = tl.zeros((GROUPS, _GROUP), tl.float32)
    pieces = tl.cdiv(groups, GROUPS)
    for piece in range(tl.program_id(0), pieces, tl.num_programs(0)):
        offset, _, mask = _tensor_blocks(piece, x_stride, groups, columns, GROUPS, FLAT)
        x = tl.load(x_ptr + offset, mask=mask, other=0.0)
        largest = tl.maximum(largest, tl.abs(x).to(tl.float32))
    absmax = tl.max(tl.max(largest, axis=1), axis=0)
    if FLAT:
        within = tl.arange(0, _GROUP)
        left = (within < tail) & (tl.program_id(0) == 0)
        rest = tl.load(x_ptr + tl.cast(groups, tl.int64) * _GROUP + within, mask=left, other=0.0)
        absmax = tl.maximum(absmax, tl.max(tl.abs(rest).to(tl.float32), axis=0))
    tl.store(partial_ptr + tl.program_id(0), absmax)


@triton.jit
def quantize_tensor_kernel(
    q_ptr, scale_ptr, partial_ptr, x_ptr, x_stride, groups, columns, tail, partials,
    LARGEST: tl.constexpr, GROUPS: tl.constexpr, PARTIALS: tl.constexpr, FLAT: tl.constexpr,
):  # fmt: skip
    """Quantize ``GROUPS`` blocks of 128 with the tensor's scale, which each program computes from the partial magnitudes.

    ``FLAT`` and ``tail`` as in ``absmax_kernel``.
    """
    index = tl.arange(0, PARTIALS)
    largest = tl.max(tl.load(partial_ptr + index, mask=index < partials, other=0.0), axis=0)
    absmax = tl.maximum(largest, _SMALLEST)
    # Backwards: the tensor's end was read last, and is still in L2.
    piece = tl.num_programs(0) - 1 - tl.program_id(0)
    offset, place, mask = _tensor_blocks(piece, x_stride, groups, columns, GROUPS, FLAT)
    x = tl.load(x_ptr + offset, mask=mask, other=0.0, eviction_policy="evict_first")
    tl.store(q_ptr + place, _codes(x, LARGEST / absmax, q_ptr.dtype.element_ty), mask=mask)
    if tl.program_id(0) == 0:
        tl.store(scale_ptr, absmax / LARGEST)
        if FLAT:
            within = tl.arange(0, _GROUP)
            after = tl.cast(groups, tl.int64) * _GROUP + within
            rest = tl.load(x_ptr + after, mask=within < tail, other=0.0)
            tl.store(q_ptr + after, _codes(rest, LARGEST / absmax, q_ptr.dtype.element_ty), mask=within < tail)
