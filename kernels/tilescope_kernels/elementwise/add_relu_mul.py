"""``relu(x + y) * scale``: three elementwise operations fused, 3 tensors of traffic instead of 7."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.checks import check_alike, check_no_grad, check_tensors, use_triton
from tilescope_kernels._shared.launching import cdiv, launch
from tilescope_kernels._shared.operators import operator, pack, unpack
from tilescope_kernels.spec import Config, Cost, Draw, Implementation, Workload, declare, drawn


@triton.jit
def _block(out_ptr, x_ptr, y_ptr, scale, offsets, mask):
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    total = x + y
    # Not tl.maximum, which turns NaN into 0: PyTorch keeps NaN.
    out = tl.where(total < 0, 0.0, total) * scale
    tl.store(out_ptr + offsets, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def add_relu_mul_kernel(out_ptr, x_ptr, y_ptr, scale, n, BLOCK: tl.constexpr):
    """``relu(x + y) * scale`` of ``BLOCK`` of ``n`` contiguous elements per program, computed in fp32."""
    # Only the block's start needs 64 bits: 32-bit offsets within a block take half the registers.
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = tl.arange(0, BLOCK)
    # A mask whose end is no multiple of 16 bytes splits accesses into single elements: only the last block has one.
    if start + BLOCK <= n:
        _block(out_ptr + start, x_ptr + start, y_ptr + start, scale, offsets, None)
    else:
        _block(out_ptr + start, x_ptr + start, y_ptr + start, scale, offsets, offsets < n - start)


#: 2048 elements in 4 warps: two 16-byte accesses per thread and tensor at 16 bits, so 4 KB per tensor in flight per program.
CONFIGS = tuple(
    {"BLOCK": block, "num_warps": warps}
    for block, warps in (
        (2048, 4), (512, 1), (1024, 1), (1024, 2), (1024, 4), (2048, 2), (2048, 8), (4096, 4), (4096, 8), (8192, 8),
        (8192, 16),
    )
)  # fmt: skip


@operator("add_relu_mul", autocast="widest", shards="ee e", fake=lambda x, *_: torch.empty_like(x))
def _add_relu_mul(x: torch.Tensor, y: torch.Tensor, scale: float, config: str) -> torch.Tensor:
    out = x.new_empty(x.shape)
    if n := out.numel():
        chosen = unpack(config) or CONFIGS[0]
        launch(add_relu_mul_kernel, (cdiv(n, chosen["BLOCK"]),), out, x, y, scale, n, **chosen)
    return out


def add_relu_mul(x: torch.Tensor, y: torch.Tensor, scale: float, *, config: Config | None = None) -> torch.Tensor:
    """``relu(x + y) * scale`` of two tensors of one shape, dtype (fp32, fp16, bf16) and device.

    Computed in fp32 and rounded once; NaN stays NaN. The result is contiguous. ``config`` is one of ``CONFIGS``. Raises ValueError, naming
    the argument, for other dtypes, shapes that differ (no broadcasting), devices without CUDA, and inputs that require a gradient.
    """
    if not use_triton():
        return reference(x, y, scale)
    check_tensors(x=x, y=y)
    check_alike(x=x, y=y)
    if isinstance(scale, torch.Tensor):
        raise ValueError("scale is a tensor: give a number")
    check_no_grad("add_relu_mul", x=x, y=y)
    return _add_relu_mul(x.contiguous(), y.contiguous(), float(scale), pack(config))


def reference(x: torch.Tensor, y: torch.Tensor, scale: float) -> torch.Tensor:
    """The reference in plain PyTorch."""
    return torch.relu(x + y) * scale


def eager(x: torch.Tensor, y: torch.Tensor, scale: float) -> torch.Tensor:
    """Three operations through memory: 4 reads and 3 writes."""
    total = torch.add(x, y)
    positive = torch.relu(total)
    return torch.mul(positive, scale)


@drawn
def inputs(draw: Draw, n: int) -> dict[str, Any]:
    """``x`` and ``y`` of ``n`` elements, standard normal, and a scale of 1.5."""
    return {**{name: draw(n) for name in ("x", "y")}, "scale": 1.5}


def cost(workload: Workload, direction: str) -> Cost:
    """One addition and one multiplication per element (comparisons do not count). Reads two tensors, writes one."""
    size = workload.bytes
    return Cost(flops=2 * workload.elements, bytes_read=2 * size, bytes_written=size)


SPEC = declare(
    "add_relu_mul", "relu(x + y) * scale", "n",
    "small 65536-bf16, medium 16777216-bf16, large 67108864-bf16, ragged 1423763-bf16, large-fp32 67108864-fp32",
    triton=Implementation(add_relu_mul, "one pass", CONFIGS),
    eager=Implementation(eager, "add, relu and mul, one after the other"),
    reference=reference, inputs=inputs, cost=cost, tolerance={"fp32": 1e-6, "fp16": 8e-4, "bf16": 6e-3},
)  # fmt: skip
