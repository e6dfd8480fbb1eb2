"""The sum of each row: a reduction bound by its reads from HBM."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.checks import check_no_grad, check_tensors, use_triton
from tilescope_kernels._shared.launching import cdiv, launch, next_power_of_2
from tilescope_kernels._shared.operators import as_rows, operator, pack, unpack
from tilescope_kernels.spec import Config, Cost, Draw, Implementation, Workload, declare, drawn


@triton.jit
def row_sum_kernel(out_ptr, x_ptr, x_stride, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """``ROWS`` rows per program, in blocks of columns. Lanes accumulate separately and are reduced once, after the loop."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    x_ptr += row * x_stride + column
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, columns, BLOCK):
        mask = (row < rows) & (start + column < columns)
        total += tl.load(x_ptr + start, mask=mask, other=0.0).to(tl.float32)
    out = tl.sum(total, axis=1, keep_dims=True)
    tl.store(out_ptr + row, out.to(out_ptr.dtype.element_ty), mask=row < rows)


#: ``BLOCK`` elements per program are in flight. Shorter rows share a program.
CONFIGS = tuple(
    {"BLOCK": block, "num_warps": warps}
    for block, warps in (
        (2048, 8), (1024, 1), (1024, 2), (1024, 4), (2048, 2), (2048, 4), (4096, 4), (4096, 8), (8192, 8), (8192, 16),
    )
)  # fmt: skip


def _config(columns: int) -> dict[str, int]:
    """The fastest known config on an H200: more programs for short rows, fewer masked lanes for rows that do not fill a block."""
    if columns <= 1024:
        return {"BLOCK": 2048, "num_warps": 2}
    if columns < 4096 or columns % 2048:
        return {"BLOCK": 1024, "num_warps": 4}
    return {"BLOCK": 2048, "num_warps": 8}


@operator("row_sum", autocast="fp32", shards="r r", fake=lambda x, _: x.new_empty(x.shape[0]))
def _row_sum(x: torch.Tensor, config: str) -> torch.Tensor:
    rows, columns = x.shape
    out = x.new_empty(rows)
    if rows:
        chosen = unpack(config) or _config(columns)
        block = min(chosen["BLOCK"], next_power_of_2(max(columns, 1)))
        tile = min(chosen["BLOCK"] // block, next_power_of_2(rows))
        fixed = {**chosen, "ROWS": tile, "BLOCK": block}
        launch(row_sum_kernel, (cdiv(rows, tile),), out, x, x.stride(0), rows, columns, **fixed)
    return out


def row_sum(x: torch.Tensor, *, config: Config | None = None) -> torch.Tensor:
    """``x.sum(-1)`` of ``x`` (..., columns) in fp32, fp16 or bf16, any strides; accumulated in fp32 in a fixed order.

    ``config`` is one of ``CONFIGS``. Raises ValueError, naming the argument, for other dtypes, a scalar, devices without
    CUDA, and an input that requires a gradient.
    """
    if not use_triton():
        return reference(x)
    check_tensors(x=x)
    if x.dim() == 0:
        raise ValueError("x has no dimension to sum over: give at least one")
    check_no_grad("row_sum", x=x)
    if x.numel() == 0:
        return x.new_zeros(x.shape[:-1])
    return _row_sum(as_rows(x, x.shape[-1]), pack(config)).reshape(x.shape[:-1])


def reference(x: torch.Tensor) -> torch.Tensor:
    """The reference in plain PyTorch."""
    return x.sum(-1)


@drawn
def inputs(draw: Draw, rows: int, columns: int) -> dict[str, Any]:
    """``x`` of rows x columns around 0.5, so that sums do not cancel and have a meaningful relative error."""
    return {"x": draw(rows, columns, shift=0.5)}


def cost(workload: Workload, direction: str) -> Cost:
    """One addition per element. Reads x, writes one element per row."""
    size = workload.bytes
    return Cost(flops=workload.elements, bytes_read=size, bytes_written=workload.dims["rows"] * workload.itemsize)


SPEC = declare(
    "row_sum", "the sum of each row", "rows columns",
    "small 128x1024-bf16, medium 4096x1024-bf16, large 16384x4096-bf16, ragged 1823x781-fp32, wide 8192x16384-bf16",
    triton=Implementation(row_sum, "one read", CONFIGS),
    eager=Implementation(reference, "torch.sum"),
    reference=reference, inputs=inputs, cost=cost, tolerance={"fp32": 1e-6, "fp16": 8e-4, "bf16": 6e-3},
)  # fmt: skip
