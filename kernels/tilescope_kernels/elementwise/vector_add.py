"""``x + y``: the smallest kernel, bound by streaming three tensors through HBM."""

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
def _add_block(out_ptr, x_ptr, y_ptr, offsets, mask):
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + y, mask=mask)


@triton.jit
def vector_add_kernel(out_ptr, x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Add ``BLOCK`` of ``n`` contiguous elements per program."""
    # Only the block's start needs 64 bits: 32-bit offsets within a block take half the registers.
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = tl.arange(0, BLOCK)
    # A mask whose end is no multiple of 16 bytes splits accesses into single elements: only the last block has one.
    if start + BLOCK <= n:
        _add_block(out_ptr + start, x_ptr + start, y_ptr + start, offsets, None)
    else:
        _add_block(out_ptr + start, x_ptr + start, y_ptr + start, offsets, offsets < n - start)


#: 2048 elements in 4 warps: two 16-byte accesses per thread and tensor at 16 bits, so 4 KB per tensor in flight per program.
CONFIGS = tuple(
    {"BLOCK": block, "num_warps": warps}
    for block, warps in (
        (2048, 4), (512, 1), (1024, 1), (1024, 2), (1024, 4), (2048, 2), (2048, 8), (4096, 4), (4096, 8), (8192, 8),
        (8192, 16),
    )
)  # fmt: skip


@operator("vector_add", autocast="widest", shards="ee e", fake=lambda x, *_: torch.empty_like(x))
def _vector_add(x: torch.Tensor, y: torch.Tensor, config: str) -> torch.Tensor:
    out = x.new_empty(x.shape)
    if n := out.numel():
        chosen = unpack(config) or CONFIGS[0]
        launch(vector_add_kernel, (cdiv(n, chosen["BLOCK"]),), out, x, y, n, **chosen)
    return out


def vector_add(x: torch.Tensor, y: torch.Tensor, *, config: Config | None = None) -> torch.Tensor:
    """``x + y`` of two tensors of one shape, dtype (fp32, fp16, bf16) and device; the result is contiguous.

    ``config`` is one of ``CONFIGS``. Raises ValueError, naming the argument, for other dtypes, shapes that differ (no
    broadcasting), devices without CUDA, and inputs that require a gradient.
    """
    if not use_triton():
        return reference(x, y)
    check_tensors(x=x, y=y)
    check_alike(x=x, y=y)
    check_no_grad("vector_add", x=x, y=y)
    return _vector_add(x.contiguous(), y.contiguous(), pack(config))


def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The reference in plain PyTorch."""
    return x + y


@drawn
def inputs(draw: Draw, n: int) -> dict[str, Any]:
    """``x`` and ``y`` of ``n`` elements, standard normal."""
    return {name: draw(n) for name in ("x", "y")}


def cost(workload: Workload, direction: str) -> Cost:
    """One addition per element. Reads two tensors, writes one."""
    size = workload.bytes
    return Cost(flops=workload.elements, bytes_read=2 * size, bytes_written=size)


SPEC = declare(
    "vector_add", "x + y", "n",
    "small 65536-bf16, medium 16777216-bf16, large 67108864-bf16, ragged 1423763-bf16, large-fp32 67108864-fp32",
    triton=Implementation(vector_add, "one pass", CONFIGS),
    eager=Implementation(reference, "torch.add"),
    reference=reference, inputs=inputs, cost=cost, tolerance={"fp32": 1e-6, "fp16": 6e-4, "bf16": 5e-3},
)  # fmt: skip
