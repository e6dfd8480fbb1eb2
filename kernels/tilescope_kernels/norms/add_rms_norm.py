"""Residual addition and RMSNorm in one pass, forward and backward.

Forward moves 4 tensors, where an addition and a fused norm move 5. RMSNorm is Zhang and Sennrich's, arXiv:1910.07467.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from tilescope_kernels._shared.checks import check_alike, check_tensors, use_triton
from tilescope_kernels._shared.launching import launch, next_power_of_2
from tilescope_kernels._shared.operators import as_rows, operator, pack, shaped_as, unpack, wants_grad
from tilescope_kernels._shared.row_tiles import aligned, in_pieces, load_piece, load_pieces, store_piece
from tilescope_kernels.norms.rms_norm import CONFIGS
from tilescope_kernels.norms.rms_norm import eager as eager_norm
from tilescope_kernels.norms.rms_norm_backward import rms_norm_backward, warps
from tilescope_kernels.spec import FORWARD, Config, Cost, Draw, Implementation, Workload, declare, drawn, peer


@triton.jit
def add_rms_norm_kernel(
    y_ptr, sum_ptr, rstd_ptr, x_ptr, residual_ptr, weight_ptr, x_stride, residual_stride, columns, eps, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row per program. ``rstd`` may be None."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0)
    residual = tl.load(residual_ptr + row * residual_stride + column, mask=mask, other=0.0)
    # Loaded before the reduction, so that all three loads are in flight together.
    weight = tl.load(weight_ptr + column, mask=mask, eviction_policy="evict_last")
    # Rounded before it is normalized, so that y is the norm of the residual stream that is returned.
    total = (x.to(tl.float32) + residual.to(tl.float32)).to(sum_ptr.dtype.element_ty)
    tl.store(sum_ptr + row * columns + column, total, mask=mask)
    squares = total.to(tl.float32) * total.to(tl.float32)
    rstd = tl.rsqrt(tl.sum(squares, axis=0) / columns + eps)
    y = total.to(tl.float32) * rstd * weight.to(tl.float32)
    tl.store(y_ptr + row * columns + column, y.to(y_ptr.dtype.element_ty), mask=mask)
    if rstd_ptr is not None:
        tl.store(rstd_ptr + row, rstd)


@triton.jit
def add_rms_norm_pieces_kernel(
    y_ptr, sum_ptr, rstd_ptr, x_ptr, residual_ptr, weight_ptr, x_stride, residual_stride, columns, eps,
    LANES: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """One row per program, in pieces (``row_tiles``), as ``add_rms_norm_kernel``."""
    row = tl.program_id(0).to(tl.int64)
    own = row * aligned(columns, WIDTH)
    x = load_pieces(x_ptr + row * aligned(x_stride, WIDTH), columns, 0.0, LANES, WIDTH, STEPS, WHOLE)
    residual_ptr += row * aligned(residual_stride, WIDTH)
    residual = load_pieces(residual_ptr, columns, 0.0, LANES, WIDTH, STEPS, WHOLE)
    squares = tl.zeros((LANES,), tl.float32)
    held = ()
    for i in tl.static_range(STEPS):
        total = (x[i].to(tl.float32) + residual[i].to(tl.float32)).to(sum_ptr.dtype.element_ty)
        store_piece(sum_ptr + own, total, columns, i, LANES, WIDTH, STEPS, WHOLE)
        squares += tl.sum(total.to(tl.float32) * total.to(tl.float32), axis=1)
        held += (total,)
    rstd = tl.rsqrt(tl.sum(squares, axis=0) / columns + eps)
    for i in tl.static_range(STEPS):
        y = held[i].to(tl.float32) * rstd
        y *= load_piece(weight_ptr, columns, 0.0, i, LANES, WIDTH, STEPS, WHOLE, KEEP=True).to(tl.float32)
        store_piece(y_ptr + own, y, columns, i, LANES, WIDTH, STEPS, WHOLE)
    if rstd_ptr is not None:
        tl.store(rstd_ptr + row, rstd)


#: Most columns of a row in one program, whose registers hold all operands and, backward, the fp32 sums for dW. Longer rows
#: are split into parts.
_MOST = 16384
#: The same for the forward pass of 16-bit rows in pieces: longer rows are faster in parts.
_MOST_IN_PIECES = 32768


def _wider(x: torch.Tensor, residual: torch.Tensor) -> torch.dtype:
    """The dtype of the sum. ``torch.promote_types`` would be an operator, and calls with it are not replayed."""
    return x.dtype if x.dtype == residual.dtype else torch.float32


def _results(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, save: bool, config: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    y, total = (x.new_empty(x.shape, dtype=_wider(x, residual)) for _ in range(2))
    return y, total, x.new_empty(x.shape[0] if save else 0, dtype=torch.float32)


@operator("add_rms_norm", autocast="widest", shards="rrw rrr", fake=_results)
def _add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, save: bool, config: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """y, x + residual and, if ``save``, each row's 1 / RMS; else an empty tensor."""
    (rows, columns), (y, total, rstd) = x.shape, _results(x, residual, weight, eps, save, config)
    if y.numel() == 0:
        return y, total, rstd
    saved = rstd if save else None
    asked = (unpack(config) or {}).get("num_warps")
    given = (y, total, saved, x, residual, weight, x.stride(0), residual.stride(0), columns, eps)
    is_even = columns <= _MOST_IN_PIECES and all(t.element_size() == 2 and t.stride(0) % 8 == 0 for t in (x, residual))
    if columns <= _MOST:
        # Wider rows in 16 warps would keep a second row from the SM.
        few = min(8, warps(x)) if x.element_size() == 2 and columns <= 8192 else warps(x)
        launch(add_rms_norm_kernel, (rows,), *given, BLOCK=next_power_of_2(columns), num_warps=asked or few)
    elif held := in_pieces(x, asked or 16) if is_even else None:
        launch(add_rms_norm_pieces_kernel, (rows,), *given, **held)
    else:
        from tilescope_kernels.norms.long_rows import forward_in_parts  # noqa: PLC0415 - few models have such rows

        forward_in_parts(y, total, saved, x, residual, weight, None, eps, centred=False)
    return y, total, rstd


@_add_rms_norm.gradient(lambda x, residual, weight, eps, save, config, y, total, rstd: (total, weight, rstd), of=2)
def _differentiate(ctx: Any, dy: torch.Tensor | None, dsum: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    total, weight, rstd = ctx.saved_tensors
    wants_dw = ctx.needs_input_grad[2]
    if dy is None:
        dx, dresidual = (None if dsum is None else dsum.to(dtype) for dtype in ctx.dtypes[:2])
        return dx, dresidual, torch.zeros_like(weight) if wants_dw else None
    dsum = None if dsum is None else dsum.contiguous()
    dx, dw = rms_norm_backward(dy.contiguous(), dsum, total, weight, rstd, wants_dw, ctx.rest[-1])
    return *(dx.to(dtype) for dtype in ctx.dtypes[:2]), dw if wants_dw else None


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, *, config: Config | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(rms_norm(x + residual) * weight, x + residual)`` over the last dimension; once differentiable.

    ``x`` and ``residual`` share a shape (..., columns), ``weight`` is (columns,). All have one dtype (fp32, fp16, bf16), or some are fp32.
    The sum is rounded to the wider dtype of ``x`` and ``residual``, then normalized in fp32. Gradients are deterministic. ``config`` is one
    of ``CONFIGS``. Raises ValueError, naming the argument, for other dtypes, shapes that do not fit, and devices without CUDA.
    """
    if not use_triton():
        return reference(x, residual, weight, eps)
    check_tensors(True, x=x, residual=residual, weight=weight)
    if x.dim() == 0:
        raise ValueError("x has no dimension to normalise over: give at least one")
    check_alike(x=x, residual=residual)
    columns = x.shape[-1]
    if tuple(weight.shape) != (columns,):
        raise ValueError(f"weight has shape {tuple(weight.shape)}: give ({columns},), the last dimension of x")
    save = wants_grad(x, residual, weight)
    rows = [as_rows(tensor, columns) for tensor in (x, residual)]
    y, total, _ = _add_rms_norm(*rows, weight.contiguous(), eps, save, pack(config))
    return shaped_as(y, x), shaped_as(total, x)


class AddRMSNorm(torch.nn.Module):
    """``add_rms_norm`` over the last ``columns`` elements with a learned ``weight``, which starts at 1."""

    def __init__(self, columns: int, eps: float = 1e-6, device: Any = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(columns, device=device, dtype=dtype))

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Map ``x`` and ``residual`` (..., columns) to (normed, new residual). Raises ValueError as ``add_rms_norm``."""
        return add_rms_norm(x, residual, self.weight, self.eps)


def reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """The reference in plain PyTorch."""
    total = x + residual
    return F.rms_norm(total, total.shape[-1:], weight, eps), total


def eager(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The formula one operation at a time, in fp32, as model code often writes it."""
    total = x + residual
    return eager_norm(total, weight, eps), total


@drawn
def inputs(draw: Draw, rows: int, columns: int) -> dict[str, Any]:
    """``x`` and ``residual`` of rows x columns, standard normal, and ``weight`` around 1."""
    x, residual = (draw(rows, columns, grad=True) for _ in range(2))
    return {"x": x, "residual": residual, "weight": draw(columns, scale=0.2, shift=1.0, grad=True), "eps": 1e-6}


def cost(workload: Workload, direction: str) -> Cost:
    """As ``cost`` of ``rms_norm``, with residual, dsum and the sum: an operation more per element in each pass.

    Backward reads dy, dsum, the sum and weight and writes dx (which the residual shares) and dW.
    """
    rows, columns = workload.dims.values()
    row, size = columns * workload.itemsize, workload.bytes
    if direction == FORWARD:
        return Cost(flops=rows * (5 * columns + 3), bytes_read=2 * size + row, bytes_written=2 * size)
    return Cost(flops=rows * (10 * columns + 1), bytes_read=3 * size + row, bytes_written=size + row)


SPEC = declare(
    "add_rms_norm", "RMSNorm of x + residual, and the sum", "rows columns",
    "small 128x1024-bf16, medium 4096x1024-bf16, large 16384x4096-bf16, ragged 1823x781-fp32, "
    "wide 8192x16384-bf16, widest 2048x65536-bf16",
    triton=Implementation(add_rms_norm, "one pass", CONFIGS),
    eager=Implementation(eager, "the addition, then the formula one operation at a time in fp32"),
    aten=Implementation(reference, "x + residual, then torch.nn.functional.rms_norm"),
    liger=peer(
        "liger-kernel", "liger_kernel.ops.fused_add_rms_norm:LigerFusedAddRMSNormFunction.apply", "Liger-Kernel's"
    ),
    reference=reference, inputs=inputs, cost=cost, tolerance={"fp32": 1e-5, "fp16": 1.2e-3, "bf16": 9e-3},
    passes="forward backward",
)  # fmt: skip
