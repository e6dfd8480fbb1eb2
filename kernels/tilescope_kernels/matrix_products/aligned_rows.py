"""Copies of matrices whose rows do not start at 16 bytes to rows that do: one pass over them, in one launch.

Tensor descriptors cannot reach other rows, and neither pointers nor asynchronous copies can move 16 bytes at once from
them. Where an operand is used more than once, as weights are, it is better allocated with such rows in the first place.

On an H200 (2026-11-26, torch 2.11, triton 3.6, cold L2) both operands of 4097x4099x4101 in bf16 took 37 us, 3.6 TB/s. With
copies and without: INT8 1023x520x776 11.4 us (24.2; cuBLAS 14.2), 4097x4104x4104 190 (1154; cuBLAS 338), FP8 128x1000x4104
17.5 (84); 16-bit times INT8 4097x4099x4101 301 (2166), 16x8192x8193 76 (286).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.integers import cdiv
from tilescope_kernels._shared.launches import launch

#: Bytes at which the rows of copies start.
_LINE = 128
#: Rows and columns that a program copies.
_ROWS, _COLUMNS = 4, 1024


@triton.jit
def _copy_block(out_ptr, x_ptr, block, rows, columns, stride, out_stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    across = tl.cdiv(out_stride, COLUMNS)
    row = block // across * ROWS + tl.arange(0, ROWS)[:, None]
    column = block % across * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    x = tl.load(x_ptr + row.to(tl.int64) * stride + column, mask=(row < rows) & (column < columns), other=0)
    # To the end of the row's room, so that 16 bytes are written at once.
    tl.store(out_ptr + row.to(tl.int64) * out_stride + column, x, mask=(row < rows) & (column < out_stride))


@triton.jit
def copy_rows_kernel(
    out_ptr, x_ptr, rows, columns, stride, out_stride,
    other_out_ptr, other_ptr, other_rows, other_columns, other_stride, other_out_stride, blocks,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Copy a matrix by the first ``blocks`` programs, and another one, unless None, by the others.

    ``ROWS`` by ``COLUMNS`` elements a program. Zeros are written between a row's end and the next row.
    """
    block = tl.program_id(0)
    if other_ptr is None or block < blocks:
        _copy_block(out_ptr, x_ptr, block, rows, columns, stride, out_stride, ROWS, COLUMNS)
    else:
        _copy_block(
            other_out_ptr, other_ptr, block - blocks, other_rows, other_columns, other_stride, other_out_stride,
            ROWS, COLUMNS,
        )  # fmt: skip


def columns(matrix: torch.Tensor) -> bool:
    """Whether the matrix is column-major."""
    return matrix.stride(0) == 1 and matrix.stride(1) != 1


def is_aligned(matrix: torch.Tensor, to: int = 16) -> bool:
    """Whether a matrix's rows, or columns, start at so many bytes: a tensor descriptor can reach those that do at 16."""
    inner, outer = sorted(matrix.stride())
    return inner == 1 and outer > 0 and outer * matrix.element_size() % to == 0 and matrix.data_ptr() % 16 == 0


def room(matrix: torch.Tensor) -> torch.Tensor:
    """Allocate a matrix of that shape, whose rows start at 128 bytes."""
    width = matrix.shape[1] * matrix.element_size()
    wide = cdiv(width, _LINE) * _LINE // matrix.element_size()
    return torch.empty((matrix.shape[0], wide), dtype=matrix.dtype, device=matrix.device)[:, : matrix.shape[1]]


def _blocks(out: torch.Tensor) -> int:
    return cdiv(out.shape[0], _ROWS) * cdiv(out.stride(0), _COLUMNS)


def _bytes(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix itself, or its bytes where it has an element a byte: the interpreter knows no FP8."""
    return matrix.view(torch.int8) if matrix.element_size() == 1 else matrix


def copy_rows(out: torch.Tensor, x: torch.Tensor, *others: torch.Tensor) -> None:
    """Copy ``x`` to the rows of ``out``, and of two others the second to the first. Writes 0 between rows."""
    given = [_bytes(matrix) for matrix in (out, x, *others)]
    outs, xs = given[::2], given[1::2]
    (first, *_), blocks = outs, [_blocks(matrix) for matrix in outs]
    last = (outs[1], xs[1], *xs[1].shape, xs[1].stride(0), outs[1].stride(0)) if others else (None, None, 0, 0, 0, 0)
    launch(
        copy_rows_kernel, (sum(blocks),), first, xs[0], *xs[0].shape, xs[0].stride(0), first.stride(0), *last, blocks[0],
        ROWS=_ROWS, COLUMNS=_COLUMNS, num_warps=4,
    )  # fmt: skip


def aligned(*matrices: torch.Tensor, to: int = 16) -> list[torch.Tensor]:
    """Up to two matrices, or copies of those whose rows, or columns, do not start at so many bytes: they start at 128."""
    result, copies = list(matrices), []
    for place, matrix in enumerate(matrices):
        if is_aligned(matrix, to):
            continue
        turned = columns(matrix)
        lines = matrix.T if turned else matrix
        lines = lines if lines.stride(1) == 1 else lines.contiguous()
        copy = room(lines)
        copies += [copy, lines]
        result[place] = copy.T if turned else copy
    if copies:
        copy_rows(*copies)
    return result


def padded(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies of two matrices of rows, longer by zeros to a multiple of 128 bytes of the one with smaller elements."""
    line = _LINE // min(a.element_size(), b.element_size())
    wide = cdiv(a.shape[1], line) * line
    copies = [torch.empty((t.shape[0], wide), dtype=t.dtype, device=t.device) for t in (a, b)]
    copy_rows(copies[0], a, copies[1], b)
    return copies[0], copies[1]
