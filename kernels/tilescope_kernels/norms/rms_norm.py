"""RMSNorm, forward and backward: one read and one write of each row, and dW without atomics.

Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv:1910.07467.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from tilescope_kernels._shared.checks import check_tensors, use_triton
from tilescope_kernels._shared.launching import cdiv, launch, multiprocessors, next_power_of_2
from tilescope_kernels._shared.operators import as_rows, as_vector, operator, pack, shaped_as, unpack, wants_grad
from tilescope_kernels._shared.row_tiles import aligned, in_pieces, load_piece, load_pieces, narrow, store_piece, vector
from tilescope_kernels.norms.rms_norm_backward import rms_norm_backward, warps
from tilescope_kernels.spec import FORWARD, Config, Cost, Draw, Implementation, Workload, declare, drawn, peer


@triton.jit
def rms_norm_kernel(
    y_ptr, rstd_ptr, x_ptr, weight_ptr, x_stride, rows, columns, eps,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """``ROWS`` rows per program. ``rstd`` and ``weight`` may be None. ``WHOLE`` tiles need no mask.

    ``columns`` and ``x_stride`` are multiples of ``VECTOR``.
    """
    x_stride = aligned(x_stride, VECTOR)
    columns = aligned(columns, VECTOR)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    valid = None if WHOLE else column < columns
    mask = None if WHOLE else (row < rows) & (column < columns)
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=None if WHOLE else 0.0)
    if weight_ptr is not None:
        # Loaded before the reduction, so that both loads are in flight together.
        weight = tl.load(weight_ptr + column, mask=valid, eviction_policy="evict_last")
    squares = x.to(tl.float32) * x.to(tl.float32)
    rstd = tl.rsqrt(tl.sum(squares, axis=1, keep_dims=True) / columns + eps)
    y = x.to(tl.float32) * rstd
    if weight_ptr is not None:
        y *= weight.to(tl.float32)
    tl.store(y_ptr + row * columns + column, y.to(y_ptr.dtype.element_ty), mask=mask)
    if rstd_ptr is not None:
        tl.store(rstd_ptr + row, rstd, mask=row < rows)


@triton.jit
def rms_norm_pieces_kernel(
    y_ptr, rstd_ptr, x_ptr, weight_ptr, x_stride, columns, eps,
    LANES: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """One row per program, in pieces (``row_tiles``). ``rstd`` and ``weight`` may be None."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * aligned(x_stride, WIDTH)
    y_ptr += row * aligned(columns, WIDTH)
    held = load_pieces(x_ptr, columns, 0.0, LANES, WIDTH, STEPS, WHOLE)
    # A long row exceeds a thread's registers in fp32: keep it in 16 bits, and load the weight only when it is needed.
    LONG: tl.constexpr = STEPS * WIDTH > 32
    if weight_ptr is not None and not LONG:
        # Loaded before the reduction, so that both loads are in flight together.
        weight = load_pieces(weight_ptr, columns, 0.0, LANES, WIDTH, STEPS, WHOLE, KEEP=True)
    squares = tl.zeros((LANES,), tl.float32)
    for i in tl.static_range(STEPS):
        squares += tl.sum(held[i].to(tl.float32) * held[i].to(tl.float32), axis=1)
    rstd = tl.rsqrt(tl.sum(squares, axis=0) / columns + eps)
    for i in tl.static_range(STEPS):
        x = narrow(held[i], columns) if LONG else held[i]
        y = x.to(tl.float32) * rstd
        if weight_ptr is not None:
            part = load_piece(weight_ptr, columns, 0.0, i, LANES, WIDTH, STEPS, WHOLE, KEEP=True) if LONG else weight[i]
            y *= part.to(tl.float32)
        store_piece(y_ptr, y, columns, i, LANES, WIDTH, STEPS, WHOLE)
    if rstd_ptr is not None:
        tl.store(rstd_ptr + row, rstd)


#: ``PROGRAMS`` per SM, 0 for the launcher's choice, walk the rows in the backward pass. Each accumulates its share of dW.
#: The forward pass has one program per row, or per several short rows.
CONFIGS = tuple(
    {"PROGRAMS": programs, "num_warps": warps} for programs in (0, 1, 2, 3, 4, 8) for warps in (8, 4, 16, 32)
)

#: Bytes of the longest row in one program: half of an SM's registers. Longer rows are split into parts.
_HELD = 128 * 1024
_EPS = torch.finfo(torch.float32).eps


def _results(x: torch.Tensor, weight: Any, eps: float, save: bool, config: str) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(*x.shape), x.new_empty(x.shape[0] if save else 0, dtype=torch.float32)


@operator("rms_norm", autocast="fp32", shards="rw rr", fake=_results)
def _rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, save: bool, config: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """y and, if ``save``, each row's 1 / RMS; else an empty tensor."""
    (rows, columns), (y, rstd) = x.shape, _results(x, weight, eps, save, config)
    if y.numel() == 0:
        return y, rstd
    asked, saved = (unpack(config) or {}).get("num_warps"), rstd if save else None
    # Instead of 16 with no more idle lanes, and of 2 or 4, which hide the latency of their chains of pieces only among many rows.
    few = columns <= 8192 and rows <= 32 * multiprocessors(x)
    eight = 8 if few or (x.element_size() == 2 and 14336 < columns <= 16384) else None
    if columns * x.element_size() > _HELD:
        from tilescope_kernels.norms.long_rows import forward_in_parts  # noqa: PLC0415 - few models have such rows

        forward_in_parts(y, None, saved, x, None, weight, None, eps, centred=False)
    elif held := in_pieces(x, asked or eight):
        launch(rms_norm_pieces_kernel, (rows,), y, saved, x, weight, x.stride(0), columns, eps, **held)
    else:
        block = next_power_of_2(columns)
        tile = max(1, 1024 // block)
        whole = columns == block and rows % tile == 0
        launch(
            rms_norm_kernel, (cdiv(rows, tile),), y, saved, x, weight, x.stride(0), rows, columns, eps,
            ROWS=tile, BLOCK=block, WHOLE=whole, VECTOR=vector(x), num_warps=asked or warps(x),
        )  # fmt: skip
    return y, rstd


@_rms_norm.gradient(lambda x, weight, eps, save, config, y, rstd: (x, weight, rstd))
def _differentiate(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    wants_dw = ctx.needs_input_grad[1]
    dx, dw = rms_norm_backward(dy.contiguous(), None, *ctx.saved_tensors, wants_dw, ctx.rest[-1])
    return dx, dw if wants_dw else None


def rms_norm(
    x: torch.Tensor, normalized_shape: int | Sequence[int], weight: torch.Tensor | None = None,
    eps: float | None = None, *, config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """RMSNorm of ``x`` over its trailing ``normalized_shape``, computed in fp32; once differentiable.

    As ``torch.nn.functional.rms_norm``. ``weight`` has the shape ``normalized_shape`` and the dtype of ``x`` (fp32, fp16,
    bf16) or fp32. The result has the dtype of ``x``. ``eps`` is added to the mean square; the default is fp32's machine
    epsilon. Gradients are deterministic. ``config`` is one of ``CONFIGS``. Raises ValueError, naming the argument, for other
    dtypes, shapes that do not fit, and devices without CUDA.
    """
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not use_triton():
        return F.rms_norm(x, shape, weight, eps)
    check_tensors(True, x=x, weight=weight)
    if not shape or tuple(x.shape[-len(shape) :]) != shape:
        raise ValueError(f"normalized_shape is {shape} but x has shape {tuple(x.shape)}: give its trailing dimensions")
    if weight is not None and tuple(weight.shape) != shape:
        raise ValueError(f"weight has shape {tuple(weight.shape)}: give normalized_shape, {shape}")
    columns = math.prod(shape)
    eps = _EPS if eps is None else eps
    save = wants_grad(x, weight)
    return shaped_as(_rms_norm(as_rows(x, columns), as_vector(weight), eps, save, pack(config))[0], x)


class RMSNorm(torch.nn.RMSNorm):
    """``torch.nn.RMSNorm``, with the same arguments, parameters and state, computed by ``rms_norm``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize ``x`` (..., *normalized_shape). Raises ValueError as ``rms_norm`` does."""
        return rms_norm(x, self.normalized_shape, self.weight, self.eps)


def reference(x: torch.Tensor, weight: torch.Tensor | None, eps: float | None) -> torch.Tensor:
    """RMSNorm in plain PyTorch, over the last dimension."""
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def triton_rows(x: torch.Tensor, weight: torch.Tensor, eps: float, config: Config | None = None) -> torch.Tensor:
    """``rms_norm`` over the last dimension, with the spec's arguments."""
    return rms_norm(x, x.shape[-1], weight, eps, config=config)


def eager(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The formula one operation at a time, in fp32, as model code often writes it."""
    precise = x.float()
    normed = precise * torch.rsqrt(precise.square().mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight


@drawn
def inputs(draw: Draw, rows: int, columns: int) -> dict[str, Any]:
    """``x`` of rows x columns, standard normal, and ``weight`` around 1."""
    return {"x": draw(rows, columns, grad=True), "weight": draw(columns, scale=0.2, shift=1.0, grad=True), "eps": 1e-6}


def cost(workload: Workload, direction: str) -> Cost:
    """Forward reads x and weight and writes y; backward reads dy, x and weight and writes dx and dW.

    The saved 1/RMS, which can be recomputed, and the partial sums of dW are not counted. Operations per element: forward, two for the sum of squares, two for the scaling. Backward: one each for n and g, two
    for their inner product, three for dx, two for dW.
    """
    rows, columns = workload.dims.values()
    row, size = columns * workload.itemsize, workload.bytes
    if direction == FORWARD:
        return Cost(flops=rows * (4 * columns + 3), bytes_read=size + row, bytes_written=size)
    return Cost(flops=rows * (9 * columns + 1), bytes_read=2 * size + row, bytes_written=size + row)


SPEC = declare(
    "rms_norm", "RMSNorm of each row", "rows columns",
    "small 128x1024-bf16, medium 4096x1024-bf16, large 16384x4096-bf16, ragged 1823x781-fp32, "
    "wide 8192x16384-bf16, widest 2048x65536-bf16",
    triton=Implementation(triton_rows, "one read, one write", CONFIGS),
    eager=Implementation(eager, "the formula one operation at a time in fp32"),
    aten=Implementation(reference, "torch.nn.functional.rms_norm"),
    liger=peer("liger-kernel", "liger_kernel.ops.rms_norm:LigerRMSNormFunction.apply", "Liger-Kernel's"),
    reference=reference, inputs=inputs, cost=cost, tolerance={"fp32": 1e-5, "fp16": 8e-4, "bf16": 6.5e-3},
    passes="forward backward",
)  # fmt: skip
