"""Copies of matrices whose rows are not 16-byte aligned to rows that are, of up to two matrices in one launch.

TMA cannot load unaligned rows, and neither pointers nor cp.async can move 16 bytes at once from them. An operand that is
used more than once, such as a weight, should be allocated with aligned rows in the first place.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.launching import cdiv, launch

#: Bytes of a memory sector.
SECTOR = 32
#: Alignment of the copies' rows, in bytes.
_LINE = 128
#: Least multiply-adds of products whose operands are padded.
_LEAST = 2**20
#: Rows and columns per program.
_ROWS, _COLUMNS = 4, 1024


@triton.jit
def _copy_block(out_ptr, x_ptr, block, rows, columns, stride, out_stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    across = tl.cdiv(out_stride, COLUMNS)
    row = block // across * ROWS + tl.arange(0, ROWS)[:, None]
    column = block % across * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    x = tl.load(x_ptr + row.to(tl.int64) * stride + column, mask=(row < rows) & (column < columns), other=0)
    # Write the padding too, so that stores are 16 bytes wide.
    tl.store(out_ptr + row.to(tl.int64) * out_stride + column, x, mask=(row < rows) & (column < out_stride))


@triton.jit(do_not_specialize=["rows", "other_rows", "blocks"])
def copy_rows_kernel(
    out_ptr, x_ptr, rows, columns, stride, out_stride,
    other_out_ptr, other_ptr, other_rows, other_columns, other_stride, other_out_stride, blocks, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Copy ROWS x COLUMNS elements per program: the first ``blocks`` programs a matrix, the others a second one, or None.

    Rows are padded with zeros up to the next row.
    """
    block = tl.program_id(0)
    if other_ptr is None or block < blocks:
        _copy_block(out_ptr, x_ptr, block, rows, columns, stride, out_stride, ROWS, COLUMNS)
    else:
        _copy_block(
            other_out_ptr, other_ptr, block - blocks, other_rows, other_columns, other_stride, other_out_stride, ROWS, COLUMNS,
        )  # fmt: skip


def columns(matrix: torch.Tensor) -> bool:
    """Whether the matrix is column-major."""
    return matrix.stride(0) == 1 and matrix.stride(1) != 1


def is_aligned(matrix: torch.Tensor, to: int = 16) -> bool:
    """Whether rows (columns if column-major) start at multiples of ``to`` bytes. TMA needs 16."""
    inner, outer = sorted(matrix.stride())
    return inner == 1 and outer > 0 and outer * matrix.element_size() % to == 0 and matrix.data_ptr() % 16 == 0


def is_askew(matrix: torch.Tensor) -> bool:
    """Whether rows do not start at sectors but TMA can load them: other matrices are copied anyway."""
    return is_aligned(matrix) and not is_aligned(matrix, SECTOR)


def room(matrix: torch.Tensor) -> torch.Tensor:
    """Allocate a matrix of the same shape and dtype with 128-byte aligned rows."""
    width = matrix.shape[1] * matrix.element_size()
    wide = cdiv(width, _LINE) * _LINE // matrix.element_size()
    return torch.empty((matrix.shape[0], wide), dtype=matrix.dtype, device=matrix.device)[:, : matrix.shape[1]]


def _bytes(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix, as int8 if its elements are one byte: Triton's interpreter has no FP8."""
    return matrix.view(torch.int8) if matrix.element_size() == 1 else matrix


def copy_rows(out: torch.Tensor, x: torch.Tensor, *others: torch.Tensor) -> None:
    """Copy ``x`` to ``out`` and, if there are ``others``, the second of them to the first. Pads rows with zeros."""
    given = [_bytes(matrix) for matrix in (out, x, *others)]
    outs, xs = given[::2], given[1::2]
    (first, *_), blocks = outs, [cdiv(out.shape[0], _ROWS) * cdiv(out.stride(0), _COLUMNS) for out in outs]
    last = (outs[1], xs[1], *xs[1].shape, xs[1].stride(0), outs[1].stride(0)) if others else (None, None, 0, 0, 0, 0)
    launch(
        copy_rows_kernel, (sum(blocks),), first, xs[0], *xs[0].shape, xs[0].stride(0), first.stride(0), *last, blocks[0],
        ROWS=_ROWS, COLUMNS=_COLUMNS, num_warps=4,
    )  # fmt: skip


def rooms(*matrices: torch.Tensor, to: int = 16) -> list[torch.Tensor]:
    """The matrices, those not ``is_aligned`` to ``to`` bytes replaced by room for copies with 128-byte aligned rows or columns."""
    return [each if is_aligned(each, to) else room(each.T).T if columns(each) else room(each) for each in matrices]


def aligned(*matrices: torch.Tensor, to: int = 16) -> list[torch.Tensor]:
    """Up to two matrices, with copies in ``rooms``."""
    result, copies = rooms(*matrices, to=to), []
    for matrix, copy in zip(matrices, result, strict=True):
        if copy is not matrix:
            made, lines = (copy.T, matrix.T) if columns(matrix) else (copy, matrix)
            copies += [made, lines if lines.stride(1) == 1 else lines.contiguous()]
    if copies:
        copy_rows(*copies)
    return result


def padded(a: torch.Tensor, b: torch.Tensor, *others: torch.Tensor) -> list[torch.Tensor]:
    """Copies of matrices with equally many columns, which zeros pad to 128 bytes a row, or the matrices themselves.

    Their inner products stay the same. Copies pay at 8 and 16 bits, where a row is not 16-byte aligned, but not for tiny a @ b.T.
    """
    matrices, size = [a, b, *others], min(a.element_size(), b.element_size())
    whole = a.shape[1] * size % 16 == 0 and all(map(is_aligned, matrices))
    if whole or a.element_size() > 2 or a.shape[0] * b.numel() < _LEAST:
        return matrices
    wide = cdiv(a.shape[1] * size, _LINE) * _LINE // size
    copies = [torch.empty((each.shape[0], wide), dtype=each.dtype, device=each.device) for each in matrices]
    copy_rows(copies[0], a, copies[1], b)
    for copy, other in zip(copies[2:], others, strict=True):
        copy_rows(copy, other)
    return copies
