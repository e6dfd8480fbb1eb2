"""``lora_linear`` in 16 bits where rows are not 16-byte aligned, as one product: ``[x, alpha * x @ A.T] @ [W, B].T``.

TMA cannot load such rows, and pointers load two bytes at a time. One launch writes both operands with aligned rows. It copies
x and W, and computes the update's columns from the rows of x that it copies. The gradient of x has the same form.

It is two to ten times as fast as loads through pointers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.integers import cdiv
from tilescope_kernels._shared.launches import launch
from tilescope_kernels._shared.launching import capability, device_of
from tilescope_kernels._shared.operators import operator
from tilescope_kernels.matrix_products.aligned_rows import is_aligned
from tilescope_kernels.matrix_products.matmul import plan_product, write_product

#: Rows and a step along K of a program that computes the update, and rows and columns of one that only copies.
_TILE = {"BLOCK_M": 16, "BLOCK_K": 256, "ROWS": 4, "COLUMNS": 1024, "num_warps": 4}
#: Elements of 128 bytes.
_LINE = 64


@triton.jit
def lora_joined_kernel(
    joined_ptr, x_ptr, a_ptr, alpha, M, K, R, x_stride, a_row, a_column, wide, blocks,
    other_ptr, weight_ptr, b_ptr, weight_rows, weight_columns, first_row, first_column, rows, columns, weight_stride, b_row, b_column, other_wide,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, RANK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write ``[x, alpha * x @ A.T]`` in the first ``blocks`` programs, and W with B beside or below it in the others.

    Rows of the results are ``wide`` and ``other_wide`` elements apart, multiples of 16. The second has ``rows`` x ``columns``
    elements, W the first ``weight_rows`` x ``weight_columns`` of them, B those from ``first_row`` and ``first_column`` on. ``RANK``
    is R padded to a size that ``tl.dot`` takes.
    """
    block = tl.program_id(0)
    if block < blocks:
        m = block * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
        r = tl.arange(0, RANK)[None, :]
        x_rows = x_ptr + m.to(tl.int64) * x_stride
        joined_rows = joined_ptr + m.to(tl.int64) * wide
        down = tl.zeros((BLOCK_M, RANK), tl.float32)
        for start_k in range(0, K, BLOCK_K):
            k = start_k + tl.arange(0, BLOCK_K)
            x = tl.load(x_rows + k[None, :], mask=(m < M) & (k < K)[None, :], other=0.0)
            a = tl.load(a_ptr + k[:, None] * a_column + r * a_row, mask=(k < K)[:, None] & (r < R), other=0.0)
            # The last step also writes what follows K, so that all stores are 16 bytes wide.
            tl.store(joined_rows + k[None, :], x, mask=(m < M) & (k < wide)[None, :])
            down = tl.dot(x, a, down)
        # Other threads may have written what follows K.
        tl.debug_barrier()
        tl.store(joined_rows + K + r, (alpha * down).to(joined_ptr.dtype.element_ty), mask=(m < M) & (r < R))
    else:
        across = tl.cdiv(other_wide, COLUMNS)
        n = (block - blocks) // across * ROWS + tl.arange(0, ROWS)[:, None]
        k = (block - blocks) % across * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        of_weight = (n < weight_rows) & (k < weight_columns)
        of_b = (n >= first_row) & (k >= first_column) & (n < rows) & (k < columns)
        w = tl.load(weight_ptr + n.to(tl.int64) * weight_stride + k, mask=of_weight, other=0.0)
        b_rows = b_ptr + (n - first_row).to(tl.int64) * b_row
        b = tl.load(b_rows + (k - first_column) * b_column, mask=of_b, other=0.0)
        tl.store(
            other_ptr + n.to(tl.int64) * other_wide + k,
            tl.where(of_weight, w, b),
            mask=(n < rows) & (k < other_wide),
        )


def serves(x: torch.Tensor, weight: torch.Tensor, lora_a: torch.Tensor, lora_b: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether copies pay: 16 bits, and rows of ``x`` or ``weight`` that are not 16-byte aligned.

    On Hopper, where the product can use TMA, also those of the other matrices.
    """
    if x.element_size() != 2:
        return False
    every = (x, weight, lora_a, lora_b, y) if capability(x) >= 90 else (x, weight)
    return not all(map(is_aligned, every))


def _joined(
    x: torch.Tensor, lora_a: torch.Tensor, alpha: float, weight: torch.Tensor, lora_b: torch.Tensor, below: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """``[x, alpha * x @ lora_a.T]``, and ``weight`` with ``lora_b`` beside or ``below`` it, with aligned rows."""
    (m, k), rank, (n, width) = x.shape, lora_a.shape[0], weight.shape
    first = (n, 0) if below else (0, width)
    rows, columns = (n + rank, width) if below else (n, width + rank)
    wide, other_wide = (cdiv(extent, _LINE) * _LINE for extent in (k + rank, columns))
    left, right = x.new_empty((m, wide)), x.new_empty((rows, other_wide))
    blocks = cdiv(m, _TILE["BLOCK_M"])
    copies = cdiv(rows, _TILE["ROWS"]) * cdiv(other_wide, _TILE["COLUMNS"])
    with device_of(x):
        launch(
            lora_joined_kernel, (blocks + copies,),
            left, x, lora_a, alpha, m, k, rank, x.stride(0), *lora_a.stride(), wide, blocks,
            right, weight, lora_b, n, width, *first, rows, columns, weight.stride(0), *lora_b.stride(), other_wide,
            RANK=max(16, triton.next_power_of_2(rank)), **_TILE,
        )  # fmt: skip
    return left[:, : k + rank], right[:, :columns]


def _write_product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    """Write ``a @ b`` of matrices with aligned rows or columns to contiguous ``c``."""
    if plan := plan_product(a, b):
        write_product(a, b, c, plan)
    else:
        torch.mm(a, b, out=c)


def write_result(
    y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, lora_a: torch.Tensor, lora_b: torch.Tensor, alpha: float
) -> None:
    """Write ``x @ weight.T + alpha * (x @ lora_a.T) @ lora_b.T`` to ``y``. Rows of ``x`` and ``weight`` have stride 1."""
    left, right = _joined(x, lora_a, alpha, weight, lora_b, False)
    _write_product(left, right.T, y)


def serves_gradient(weight: torch.Tensor) -> bool:
    """Whether copies pay for the gradient of x: 16 bits, and rows of ``weight`` or of y that are not 16-byte aligned."""
    return weight.element_size() == 2 and bool(weight.shape[0] % 8 or weight.stride(0) % 8)


@operator("lora_linear_backward")
def dx_and_up(
    dy: torch.Tensor, weight: torch.Tensor, lora_a: torch.Tensor, lora_b: torch.Tensor, alpha: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient of x, ``dy @ weight + up @ lora_a``, and ``up``, which is ``alpha * dy @ lora_b``."""
    n, k = weight.shape
    left, right = _joined(dy, lora_b.T, alpha, weight, lora_a, True)
    dx = dy.new_empty((dy.shape[0], k))
    _write_product(left, right, dx)
    return dx, left[:, n:]


@dx_and_up.register_fake
def _(
    dy: torch.Tensor, weight: torch.Tensor, lora_a: torch.Tensor, lora_b: torch.Tensor, alpha: float
) -> tuple[torch.Tensor, torch.Tensor]:
    (n, k), rank = weight.shape, lora_a.shape[0]
    wide = (n + rank + _LINE - 1) // _LINE * _LINE
    return dy.new_empty((dy.shape[0], k)), dy.new_empty((dy.shape[0], wide))[:, n : n + rank]
