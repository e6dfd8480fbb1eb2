"""Maximum and log-sum-exp of each row in one pass: the reduction behind softmax and cross-entropy.

A single pass must rescale the sum whenever the maximum rises (Milakov and Gimelshein, arXiv:1805.02867). Here that happens at most once per
16 bytes that a thread reads, so an element costs little more than one exponential. The plain recurrence takes two.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.checks import check_no_grad, check_tensors, use_triton
from tilescope_kernels._shared.launching import launch
from tilescope_kernels._shared.online_softmax import sum_exp
from tilescope_kernels._shared.operators import as_rows, operator, pack, unpack
from tilescope_kernels._shared.row_tiles import whole_part
from tilescope_kernels.spec import Config, Cost, Draw, Implementation, Workload, declare, drawn


@triton.jit
def online_max_kernel(
    max_ptr, lse_ptr, x_ptr, x_stride, columns, LANES: tl.constexpr, WIDTH: tl.constexpr, SKEWED: tl.constexpr
):
    """One row per program. ``SKEWED`` rows are not 16-byte aligned."""
    row = tl.program_id(0).to(tl.int64)
    begin, before, length = whole_part(row * x_stride, columns, WIDTH, SKEWED)
    largest, shift, total, _ = sum_exp(x_ptr + begin, before, length, columns, LANES, WIDTH, SKEWED)
    lse = shift + tl.log(total)
    # ``tl.max`` ignores NaN, the sum does not: lse is NaN only if an element is.
    largest = tl.where(lse != lse, lse, largest)  # noqa: PLR0124 (only NaN differs from itself)
    tl.store(max_ptr + row, largest.to(max_ptr.dtype.element_ty))
    tl.store(lse_ptr + row, lse.to(lse_ptr.dtype.element_ty))


#: ``ACCESSES`` of 16 bytes per thread are in flight in each step.
CONFIGS = tuple({"ACCESSES": accesses, "num_warps": warps} for accesses in (2, 1, 4) for warps in (2, 1, 4, 8))


def _config(columns: int) -> dict[str, int]:
    """The fastest known config on an H200. Short rows take fewer threads to reduce over, so that more rows are in flight."""
    if columns <= 4096:
        return {"ACCESSES": 4, "num_warps": 1}
    return {"ACCESSES": 2, "num_warps": 4 if columns <= 32768 else 8}


@operator("online_max", shards="r rr", fake=lambda x, _: (x.new_empty(x.shape[0]), x.new_empty(x.shape[0])))
def _online_max(x: torch.Tensor, config: str) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = x.shape
    largest, lse = (x.new_empty(rows) for _ in range(2))
    if rows:
        chosen, width = unpack(config) or _config(columns), 16 // x.element_size()
        warps = chosen["num_warps"]
        fixed = {"LANES": 32 * warps * chosen["ACCESSES"], "WIDTH": width, "SKEWED": x.stride(0) % width > 0}
        launch(online_max_kernel, (rows,), largest, lse, x, x.stride(0), columns, **fixed, num_warps=warps)
    return largest, lse


def online_max(x: torch.Tensor, *, config: Config | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """``(x.amax(-1), x.logsumexp(-1))`` of ``x`` (..., columns) in fp32, fp16 or bf16, any strides; computed in fp32.

    Infinities and NaN are handled as in PyTorch. ``config`` is one of ``CONFIGS``. Raises ValueError, naming the argument, for
    other dtypes, empty rows, devices without CUDA, and an input that requires a gradient.
    """
    if not use_triton():
        return reference(x)
    check_tensors(x=x)
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"x has shape {tuple(x.shape)}: the maximum of no elements is not defined")
    check_no_grad("online_max", x=x)
    largest, lse = _online_max(as_rows(x, x.shape[-1]), pack(config))
    return largest.reshape(x.shape[:-1]), lse.reshape(x.shape[:-1])


def reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The reference in plain PyTorch."""
    return x.amax(-1), x.logsumexp(-1)


def eager(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The formula one operation at a time: six tensors of memory traffic instead of one."""
    largest = x.amax(-1, keepdim=True)
    return largest[..., 0], (x - largest).exp().sum(-1).log() + largest[..., 0]


@drawn
def inputs(draw: Draw, rows: int, columns: int) -> dict[str, Any]:
    """``x`` of rows x columns, normal with standard deviation 2."""
    return {"x": draw(rows, columns, scale=2.0)}


def cost(workload: Workload, direction: str) -> Cost:
    """Subtract, exponential and add per element, two more per row. Reads x, writes two elements per row."""
    rows, size = workload.dims["rows"], workload.bytes
    return Cost(flops=3 * workload.elements + 2 * rows, bytes_read=size, bytes_written=2 * rows * workload.itemsize)


SPEC = declare(
    "online_max", "maximum and log-sum-exp of each row", "rows columns",
    "small 128x1024-bf16, medium 4096x1024-bf16, large 16384x4096-bf16, ragged 1823x781-fp32, wide 8192x16384-bf16",
    triton=Implementation(online_max, "one read", CONFIGS),
    eager=Implementation(eager, "max, subtract, exp, sum and log, one after the other"),
    aten=Implementation(reference, "torch.amax and torch.logsumexp"),
    reference=reference, inputs=inputs, cost=cost, tolerance={"fp32": 1e-6, "fp16": 9e-4, "bf16": 7e-3},
)  # fmt: skip
