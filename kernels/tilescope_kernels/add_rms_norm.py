"""Residual addition and RMSNorm in one pass: 4 tensors of traffic where the addition and a fused norm take 5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from tilescope_kernels._declare import compiled, generator, normal
from tilescope_kernels._launch import check_tensors, device_of, multiprocessors, split_config, use_triton
from tilescope_kernels._partials import sum_partials
from tilescope_kernels.spec import BACKWARD, FORWARD, Cost, Implementation, KernelSpec, Workload


@triton.jit
def add_rms_norm_kernel(
    y_ptr, sum_ptr, rstd_ptr, x_ptr, residual_ptr, weight_ptr, x_stride, residual_stride, rows, columns, eps,
    BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Rows ``program, program + programs, ...``, one at a time. ``rstd`` may be None."""
    column = tl.arange(0, BLOCK)
    mask = column < columns
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        start = row + tl.full((), 0, tl.int64)  # 64 bits wide; interpreted, a loop's index has no .to()
        x = tl.load(x_ptr + start * x_stride + column, mask=mask, other=0.0, eviction_policy="evict_first")
        residual = tl.load(
            residual_ptr + start * residual_stride + column, mask=mask, other=0.0, eviction_policy="evict_first"
        )
        # Rounded before it is normalised, so that the norm is that of the residual stream which the caller gets.
        total = (x.to(tl.float32) + residual.to(tl.float32)).to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + start * columns + column, total, mask=mask)
        squares = total.to(tl.float32) * total.to(tl.float32)
        rstd = tl.rsqrt(tl.sum(squares, axis=0) / columns + eps)
        # Read after the reduction: the weight hits L1, and would hold registers while the row is awaited.
        weight = tl.load(weight_ptr + column, mask=mask, eviction_policy="evict_last").to(tl.float32)
        y = total.to(tl.float32) * rstd * weight
        tl.store(y_ptr + start * columns + column, y.to(y_ptr.dtype.element_ty), mask=mask)
        if rstd_ptr is not None:
            tl.store(rstd_ptr + row, rstd)


@triton.jit
def add_rms_norm_backward_kernel(
    dx_ptr, partial_ptr, dy_ptr, dsum_ptr, sum_ptr, weight_ptr, rstd_ptr, rows, columns,
    BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Gradient of x and residual alike, of rows ``program, program + programs, ...``, and their share of dW.

    With n = sum * rstd and g = dy * weight: dx = rstd * (g - n * mean(g * n)) + dsum and dW = sum of dy * n over rows
    (Zhang and Sennrich, arXiv:1910.07467). ``dsum`` is None where the new residual has no gradient.
    """
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    weight = tl.load(weight_ptr + column, mask=mask, other=0.0, eviction_policy="evict_last")
    if partial_ptr is not None:
        dw = tl.zeros((BLOCK,), tl.float32)
    for row in tl.range(program, rows, tl.num_programs(0), num_stages=STAGES):
        start = row + tl.full((), 0, tl.int64)  # 64 bits wide; interpreted, a loop's index has no .to()
        offsets = start * columns + column
        total = tl.load(sum_ptr + offsets, mask=mask, other=0.0)
        dy = tl.load(dy_ptr + offsets, mask=mask, other=0.0)
        rstd = tl.load(rstd_ptr + row)
        normed = total.to(tl.float32) * rstd
        g = dy.to(tl.float32) * weight.to(tl.float32)
        if partial_ptr is not None:
            # A padding lane's dy is 0, so it adds nothing.
            dw += dy.to(tl.float32) * normed
        inner = tl.sum(g * normed, axis=0) / columns
        dx = (g - normed * inner) * rstd
        if dsum_ptr is not None:
            dx += tl.load(dsum_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx_ptr + offsets, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    if partial_ptr is not None:
        tl.store(partial_ptr + program.to(tl.int64) * columns + column, dw, mask=mask)


#: ``PROGRAMS`` a multiprocessor walk the rows, ``STAGES - 1`` rows ahead of the arithmetic. 0 is one program a row in
#: the forward pass and the launcher's choice in the backward pass, which must walk to add up the weight's gradient.
CONFIGS = tuple(
    {"PROGRAMS": programs, "STAGES": stages, "num_warps": warps}
    for programs, stages in ((0, 2), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (4, 1), (4, 2))
    for warps in (8, 4, 16)
)

#: Most columns: a program holds a row of each operand, and in the backward pass the fp32 sums for dW beside them.
_MOST = 16384


def _warps(x: torch.Tensor) -> int:
    """Warps for a row of ``x``: 16 elements a thread, two 16-byte accesses an operand at 16 bits."""
    # Rows that do not start at 16 bytes are read one element at a time: each needs its own address and mask.
    elements = 8 if x.shape[1] * x.element_size() % 16 else 16
    return min(32, max(1, triton.next_power_of_2(x.shape[1]) // (32 * elements)))


def _forward(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, save: bool,
    config: Mapping[str, int] | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:  # fmt: skip
    rows, columns = x.shape
    y, total = (torch.empty((rows, columns), dtype=x.dtype, device=x.device) for _ in range(2))
    rstd = torch.empty(rows, device=x.device) if save else None
    if y.numel() == 0:
        return y, total, rstd
    chosen, options = split_config(config or {})
    options.setdefault("num_warps", _warps(x))
    walking = chosen.get("PROGRAMS", 0) * multiprocessors(x)
    programs, stages = (min(rows, walking), chosen["STAGES"]) if walking else (rows, 1)
    with device_of(x):
        add_rms_norm_kernel[(programs,)](
            y, total, rstd, x, residual, weight, x.stride(0), residual.stride(0), rows, columns, eps,
            BLOCK=triton.next_power_of_2(columns), STAGES=stages, **options,
        )  # fmt: skip
    return y, total, rstd


def _backward(
    dy: torch.Tensor, dsum: torch.Tensor | None, total: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor,
    wants_dw: bool, config: Mapping[str, int] | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    rows, columns = total.shape
    dx = torch.empty_like(total)
    if dx.numel() == 0:
        return dx, torch.zeros_like(weight) if wants_dw else None
    chosen, options = split_config(config or {})
    options.setdefault("num_warps", _warps(total))
    block = triton.next_power_of_2(columns)
    # Rows in flight hide latency: few wide ones or several narrow ones; each program costs a row of partial sums.
    walking = (chosen.get("PROGRAMS") or max(1, min(4, 8192 // block))) * multiprocessors(total)
    programs = min(rows, walking) if wants_dw else rows
    # So many stages of three operands fit the shared memory of every architecture we compile for.
    row_bytes = block * total.element_size()
    default = 3 if row_bytes <= 8192 else 2 if row_bytes <= 32768 else 1
    stages = chosen.get("STAGES", default) if wants_dw else 1
    partial = torch.empty((1, programs, columns), device=total.device) if wants_dw else None
    with device_of(total):
        add_rms_norm_backward_kernel[(programs,)](
            dx, partial, dy, dsum, total, weight, rstd, rows, columns, BLOCK=block, STAGES=stages, **options
        )
    return dx, None if partial is None else sum_partials(partial, total.dtype)[0]


class _AddRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float,
        config: Mapping[str, int] | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        y, total, rstd = _forward(x, residual, weight, eps, any(ctx.needs_input_grad), config)
        ctx.save_for_backward(total, weight, rstd)
        ctx.set_materialize_grads(False)
        ctx.config = config
        return y, total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: torch.Tensor | None, dsum: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        total, weight, rstd = ctx.saved_tensors
        if dy is None:
            return dsum, dsum, torch.zeros_like(weight) if ctx.needs_input_grad[2] else None, None, None
        dsum = None if dsum is None else dsum.contiguous()
        dx, dw = _backward(dy.contiguous(), dsum, total, weight, rstd, ctx.needs_input_grad[2], ctx.config)
        return dx, dx, dw, None, None


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    config: Mapping[str, int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(rms_norm(x + residual) * weight, x + residual)`` over the last dimension; once differentiable.

    ``x`` and ``residual`` share a shape (..., columns), ``weight`` is (columns,); all of one dtype (fp32, fp16, bf16).
    The sum is rounded to it before it is normalised in fp32. Gradients are the same every time. ``config`` is one of
    ``CONFIGS``. Raises ValueError, naming the argument, for what it cannot serve: other dtypes, shapes that do not
    fit, more than 16384 columns, devices without CUDA.
    """
    if not use_triton():
        return reference(x, residual, weight, eps)
    check_tensors(x=x, residual=residual, weight=weight)
    if x.dim() == 0:
        raise ValueError("x has no dimension to normalise over: give at least one")
    if residual.shape != x.shape:
        raise ValueError(f"residual has shape {tuple(residual.shape)} but x has {tuple(x.shape)}: give both one shape")
    columns = x.shape[-1]
    if tuple(weight.shape) != (columns,):
        raise ValueError(f"weight has shape {tuple(weight.shape)}: give ({columns},), the last dimension of x")
    if columns > _MOST:
        raise ValueError(f"x has {columns} columns: at most {_MOST}")
    # Rows may lie any distance apart, elements of a row must be neighbours.
    flat = [tensor.reshape(x.numel() // max(columns, 1), columns) for tensor in (x, residual)]
    flat = [tensor if tensor.stride(1) == 1 else tensor.contiguous() for tensor in flat]
    y, total = _AddRMSNorm.apply(*flat, weight.contiguous(), eps, config)
    return y.reshape(x.shape), total.reshape(x.shape)


class AddRMSNorm(torch.nn.Module):
    """``add_rms_norm`` over the last ``columns`` elements with a learned ``weight``, which starts at 1."""

    def __init__(self, columns: int, eps: float = 1e-6, device: Any = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(columns, device=device, dtype=dtype))

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``x`` and ``residual`` (..., columns) to (normed, new residual). Raises ValueError as ``add_rms_norm``."""
        return add_rms_norm(x, residual, self.weight, self.eps)


def reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in plain PyTorch."""
    total = x + residual
    return F.rms_norm(total, total.shape[-1:], weight, eps), total


def eager(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The formula one operation at a time, in fp32 between its ends, as model code is often written."""
    total = x + residual
    precise = total.float()
    normed = precise * torch.rsqrt(precise.square().mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight, total


def aten(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """PyTorch's addition and its own fused RMSNorm: 3 reads and 2 writes."""
    total = x + residual
    return F.rms_norm(total, total.shape[-1:], weight, eps), total


def inputs(workload: Workload, device: Any) -> dict[str, Any]:
    """``x`` and ``residual`` of rows x columns, standard normal, and ``weight`` around 1."""
    numbers = generator(workload, device)
    rows, columns = workload.dims["rows"], workload.dims["columns"]
    return {
        "x": normal((rows, columns), workload, device, numbers, requires_grad=True),
        "residual": normal((rows, columns), workload, device, numbers, requires_grad=True),
        "weight": normal((columns,), workload, device, numbers, scale=0.2, shift=1.0, requires_grad=True),
        "eps": 1e-6,
    }


def cost(workload: Workload, direction: str) -> Cost:
    """Forward reads x, residual and weight and writes y and the sum. Backward reads dy, the sum's gradient, the sum and
    weight and writes one gradient (x and residual share it) and dW.

    The saved 1/RMS is no part of the floor, for it can be computed again: where a gradient is wanted, the Triton
    forward writes 4 bytes a row more than this and the backward reads them; its partial sums of dW add 4 x columns
    bytes a program, written and read again (from L2).

    Operations an element: forward, the addition, square and add, two for the scaling. Backward: one each for n and g,
    two for their inner product, three for dx and one for dsum, two for dW.
    """
    rows, columns = workload.dims["rows"], workload.dims["columns"]
    row, size = columns * workload.itemsize, workload.elements * workload.itemsize
    if direction == FORWARD:
        return Cost(flops=rows * (5 * columns + 3), bytes_read=2 * size + row, bytes_written=2 * size)
    return Cost(flops=rows * (10 * columns + 1), bytes_read=3 * size + row, bytes_written=size + row)


SPEC = KernelSpec(
    name="add_rms_norm",
    summary="RMSNorm of x + residual, and the sum",
    dims=("rows", "columns"),
    implementations={
        "triton": Implementation(add_rms_norm, "one pass", CONFIGS),
        "eager": Implementation(eager, "the addition, then the formula one operation at a time in fp32"),
        "compile": Implementation(compiled(eager), "torch.compile of eager"),
        "aten": Implementation(aten, "x + residual, then torch.nn.functional.rms_norm"),
    },
    reference=reference,
    inputs=inputs,
    workloads=(
        Workload({"rows": 128, "columns": 1024}, "bf16", label="small"),
        Workload({"rows": 4096, "columns": 1024}, "bf16", label="medium"),
        Workload({"rows": 16384, "columns": 4096}, "bf16", label="large"),
        Workload({"rows": 1823, "columns": 781}, "fp32", label="ragged"),
        Workload({"rows": 8192, "columns": 16384}, "bf16", label="wide"),
    ),
    cost=cost,
    tolerance={"fp32": 1e-5, "fp16": 4e-3, "bf16": 3e-2},
    passes=(FORWARD, BACKWARD),
)
