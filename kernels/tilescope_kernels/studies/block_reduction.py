"""What does shared memory cost a reduction? The sum of each row in three ways.

A thread accumulates in registers, and the 32 threads of a warp reduce by shuffles. Only several warps of one row exchange
through shared memory, 4 bytes per warp. The variants do so once, at every step, or never.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.checks import check_no_grad, check_tensors, use_triton
from tilescope_kernels._shared.launching import launch
from tilescope_kernels.spec import Config, Cost, Draw, Implementation, Workload, declare, drawn


@triton.jit
def block_reduction_kernel(
    y_ptr, x_ptr, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr, EVERY_BLOCK: tl.constexpr
):  # fmt: skip
    """Sums of ROWS rows per program, BLOCK columns at a time, reduced after every block or once after the last."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    x_rows = x_ptr + row.to(tl.int64) * columns
    # 2-D to the end: converting to another layout for the store would go through shared memory.
    total = tl.zeros((ROWS, 1), tl.float32)
    partial = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        x = tl.load(x_rows + column, mask=(row < rows) & (column < columns), other=0.0).to(tl.float32)
        if EVERY_BLOCK:
            total += tl.sum(x, 1, keep_dims=True)
        else:
            partial += x
    if not EVERY_BLOCK:
        total = tl.sum(partial, 1, keep_dims=True)
    tl.store(y_ptr + row, total.to(y_ptr.dtype.element_ty), mask=row < rows)


#: ``BLOCK`` columns of one row per program, shared by its warps.
CONFIGS = tuple(
    {"BLOCK": block, "num_warps": warps} for block, warps in ((2048, 8), (1024, 4), (2048, 4), (4096, 8), (4096, 16))
)
#: One row per warp: ``BLOCK`` 256 is a 16-byte access per thread at 16 bits.
WARP_CONFIGS = tuple({"BLOCK": block, "num_warps": warps} for warps in (8, 4, 16) for block in (256, 128))


def _summed(x: torch.Tensor, rows_by_warp: bool, every_block: bool, config: Config | None) -> torch.Tensor:
    if not use_triton():
        return reference(x)
    check_tensors(x=x)
    if x.dim() != 2:
        raise ValueError(f"x has {x.dim()} dimensions: give a matrix")
    check_no_grad("this sum", x=x)
    x = x.contiguous()
    (rows, columns), chosen = x.shape, dict(config or (WARP_CONFIGS if rows_by_warp else CONFIGS)[0])
    y = torch.empty(rows, dtype=x.dtype, device=x.device)
    rows_a_program = chosen["num_warps"] if rows_by_warp else 1
    if rows:
        launch(
            block_reduction_kernel, (triton.cdiv(rows, rows_a_program),),
            y, x, rows, columns, ROWS=rows_a_program, EVERY_BLOCK=every_block, **chosen,
        )  # fmt: skip
    return y


def _variant(rows_by_warp: bool, every_block: bool) -> Callable[..., torch.Tensor]:
    def call(x: torch.Tensor, *, config: Config | None = None) -> torch.Tensor:
        """The sum of each row of a matrix. Raises ValueError, naming the argument, for other dtypes and shapes."""
        return _summed(x, rows_by_warp, every_block, config)

    return call


def reference(x: torch.Tensor) -> torch.Tensor:
    """The reference in plain PyTorch."""
    return x.sum(-1)


@drawn
def inputs(draw: Draw, rows: int, columns: int) -> dict[str, Any]:
    """``x`` of rows x columns around 1, so that sums do not cancel."""
    return {"x": draw(rows, columns, shift=1.0)}


def cost(workload: Workload, direction: str) -> Cost:
    """One addition per element. Reads x, writes one number per row."""
    size = workload.bytes
    return Cost(flops=workload.elements, bytes_read=size, bytes_written=workload.dims["rows"] * workload.itemsize)


SPEC = declare(
    "block_reduction", "row sums that meet in shared memory once, at every step, or never", "rows columns",
    "small 128x1024-bf16, medium 4096x4096-bf16, large 8192x16384-bf16, ragged 1823x781-fp32, empty 0x1024-bf16",
    triton=Implementation(_variant(False, False), "a row a program, its warps meet once", CONFIGS),
    every_block=Implementation(_variant(False, True), "a row a program, its warps meet at every step", CONFIGS),
    warps=Implementation(_variant(True, False), "a row a warp: nothing in shared memory", WARP_CONFIGS),
    eager=Implementation(reference, "torch.sum"),
    reference=reference, inputs=inputs, cost=cost, tolerance={"fp32": 1e-6, "fp16": 6e-4, "bf16": 5e-3},
)  # fmt: skip
