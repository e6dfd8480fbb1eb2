"""What does uncoalesced access cost, when the threads of a warp access elements that are not adjacent?

Both copies move every element once. In the first, a warp accesses 32 adjacent elements: four 32-byte sectors for fp32. In the
second, elements ``stride`` apart: up to 32 sectors, one element of each.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.checks import check_no_grad, check_tensors, use_triton
from tilescope_kernels._shared.launching import launch
from tilescope_kernels.spec import Config, Cost, Draw, Implementation, Workload, declare, drawn


@triton.jit
def unit_copy_kernel(y_ptr, x_ptr, n, BLOCK: tl.constexpr):
    """Copy BLOCK adjacent elements per program."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = tl.arange(0, BLOCK)
    values = tl.load(x_ptr + start + offsets, mask=offsets < n - start)
    tl.store(y_ptr + start + offsets, values, mask=offsets < n - start)


@triton.jit
def strided_copy_kernel(y_ptr, x_ptr, n, stride, BLOCK: tl.constexpr):
    """Copy BLOCK elements per program, ``stride`` apart: column by column of a row-major matrix with ``stride`` columns."""
    column_length = tl.cdiv(n, stride)
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    offsets = position % column_length * stride + position // column_length
    mask = (position < column_length * stride) & (offsets < n)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask)


CONFIGS = tuple(
    {"BLOCK": block, "num_warps": warps}
    for block, warps in ((2048, 4), (1024, 4), (1024, 8), (2048, 8), (4096, 4), (4096, 8), (512, 4))
)


def _check(x: torch.Tensor, stride: int) -> torch.Tensor:
    check_tensors(x=x)
    if x.dim() != 1:
        raise ValueError(f"x has {x.dim()} dimensions: give 1")
    if stride < 1:
        raise ValueError(f"stride is {stride}: give at least 1")
    check_no_grad("this copy", x=x)
    return x.contiguous()


def unit_copy(x: torch.Tensor, stride: int, *, config: Config | None = None) -> torch.Tensor:
    """Copy a vector (fp32, fp16, bf16) with coalesced accesses, whatever ``stride`` is.

    Raises ValueError, naming the argument, for other dtypes and shapes.
    """
    if not use_triton():
        return reference(x, stride)
    x = _check(x, stride)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    chosen = config or CONFIGS[0]
    if n := y.numel():
        launch(unit_copy_kernel, (triton.cdiv(n, chosen["BLOCK"]),), y, x, n, **chosen)
    return y


def strided_copy(x: torch.Tensor, stride: int, *, config: Config | None = None) -> torch.Tensor:
    """Copy a vector with adjacent threads accessing elements ``stride`` apart. Otherwise as ``unit_copy``."""
    if not use_triton():
        return reference(x, stride)
    x = _check(x, stride)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    chosen = config or CONFIGS[0]
    if n := y.numel():
        positions = triton.cdiv(n, stride) * stride
        launch(strided_copy_kernel, (triton.cdiv(positions, chosen["BLOCK"]),), y, x, n, stride, **chosen)
    return y


def reference(x: torch.Tensor, stride: int) -> torch.Tensor:
    """The reference in plain PyTorch."""
    return x.clone()


@drawn
def inputs(draw: Draw, n: int, stride: int) -> dict[str, Any]:
    """``x`` of ``n`` elements, standard normal, and the stride in elements."""
    return {"x": draw(n), "stride": max(1, stride)}


def cost(workload: Workload, direction: str) -> Cost:
    """One read and one write per element. The additional traffic of strided access is what the study measures."""
    size = workload.dims["n"] * workload.itemsize
    return Cost(flops=0, bytes_read=size, bytes_written=size)


SPEC = declare(
    "strided_copy", "a copy by neighbours against one by strides", "n stride",
    "small 65536x32-fp32, medium 4194304x32-fp32, large 67108864x32-fp32, ragged 1423763x7-fp32, "
    "stride-2 67108864x2-fp32, stride-8 67108864x8-fp32, empty 0x32-fp32",
    triton=Implementation(unit_copy, "a warp's threads access neighbours", CONFIGS),
    strided=Implementation(strided_copy, "a warp's threads access elements a stride apart", CONFIGS),
    eager=Implementation(reference, "torch.clone"),
    reference=reference, inputs=inputs, cost=cost, tolerance={"fp32": 0.0, "fp16": 0.0, "bf16": 0.0},
)  # fmt: skip
