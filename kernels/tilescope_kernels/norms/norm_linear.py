"""LayerNorm into a linear layer, and RMSNorm through GELU into a linear layer.

The norm runs before cuBLAS's product. Normalizing tiles in the product's main loop costs more than writing the normalized rows and reading
them back, because every tile of columns repeats it between shared memory and tensor cores.

Only x is saved for the gradients. The normalized rows are recomputed for the weight's gradient: one pass over x, where saving them would
cost a tensor as large as x. RMSNorm and GELU have one backward pass together.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from tilescope_kernels._shared.activations import activate, activate_with_derivative
from tilescope_kernels._shared.checks import check_tensors, use_triton
from tilescope_kernels._shared.launching import launch, multiprocessors, next_power_of_2
from tilescope_kernels._shared.operators import as_rows, as_vector, operator, pack, unpack
from tilescope_kernels._shared.weight_gradients import sum_partials, sums_dtype
from tilescope_kernels.elementwise.gelu import APPROXIMATE, _gelu_backward
from tilescope_kernels.norms.layer_norm import _layer_norm, _layer_norm_backward
from tilescope_kernels.norms.rms_norm import _rms_norm
from tilescope_kernels.norms.rms_norm_backward import rms_norm_backward
from tilescope_kernels.spec import FORWARD, Config, Cost, Draw, Implementation, Workload, declare, drawn


@triton.jit
def normed_rows_kernel(
    y_ptr, x_ptr, norm_weight_ptr, norm_bias_ptr, x_stride, columns, eps, RMS_GELU: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """``layer_norm(x)`` or, with ``RMS_GELU``, ``gelu(rms_norm(x))``. One row per program, read once."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    if not RMS_GELU:
        x = tl.where(mask, x - tl.sum(x) / columns, 0.0)
    y = x * tl.rsqrt(tl.sum(x * x) / columns + eps)
    # Every row reads the norm's parameters again, so they should stay in cache.
    if norm_weight_ptr is not None:
        y *= tl.load(norm_weight_ptr + column, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
    if norm_bias_ptr is not None:
        y += tl.load(norm_bias_ptr + column, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
    if RMS_GELU:
        y = activate(y, 1)
    tl.store(y_ptr + row * columns + column, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def rms_norm_gelu_backward_kernel(
    dx_ptr, partial_ptr, dy_ptr, x_ptr, norm_weight_ptr, x_stride, rows, columns, eps, BLOCK: tl.constexpr
):
    """``dx`` of gelu(rms_norm(x)) for rows ``program, program + programs, ...``, and their share of the weight's gradient.

    With n = x * rstd, d = dy * gelu'(n * weight) and g = d * weight: dx = rstd * (g - n * mean(g * n)), and the weight's
    gradient is the sum of d * n over rows. 1 / RMS is recomputed, which needs no further read of x.
    """
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    weight = 1.0
    if norm_weight_ptr is not None:
        weight = tl.load(norm_weight_ptr + column, mask=mask, other=0.0)
    dw = tl.zeros((BLOCK,), tl.float32)
    for row in range(program, rows, tl.num_programs(0)):
        start = row + tl.full((), 0, tl.int64)  # int64; the interpreter's loop index has no .to()
        x = tl.load(x_ptr + start * x_stride + column, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + start * columns + column, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(x * x) / columns + eps)
        normed = x * rstd
        gain = weight if norm_weight_ptr is None else weight.to(tl.float32)
        _, slope = activate_with_derivative(normed * gain, 1)
        g = dy * slope
        dw += g * normed
        g *= gain
        dx = (g - normed * (tl.sum(g * normed) / columns)) * rstd
        tl.store(dx_ptr + start * columns + column, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    if partial_ptr is not None:
        tl.store(partial_ptr + program.to(tl.int64) * columns + column, dw, mask=mask)


#: Most columns of one program, whose fp32 sums for the weight's gradient then take a quarter of an SM's registers.
_SUMMED = 16384


def normed_rows(
    x: torch.Tensor, norm_weight: torch.Tensor | None, norm_bias: torch.Tensor | None, eps: float, rms_gelu: bool, num_warps: int | None = None
) -> torch.Tensor:  # fmt: skip
    """``layer_norm(x)`` or, if ``rms_gelu``, ``gelu(rms_norm(x))`` of x (M, K), with stride 1 along K."""
    (rows, columns), normed = x.shape, torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = next_power_of_2(columns)
    if rows:
        launch(
            normed_rows_kernel, (rows,), normed, x, norm_weight, norm_bias, x.stride(0), columns, eps,
            RMS_GELU=rms_gelu, BLOCK=block, num_warps=num_warps or min(16, max(4, block // 1024)),
        )  # fmt: skip
    return normed


@operator("rms_norm_gelu", fake=lambda x, *_: x.new_empty(*x.shape))
def _rms_norm_gelu(x: torch.Tensor, norm_weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    return normed_rows(x, norm_weight, None, eps, True)


@operator(
    "rms_norm_gelu_backward",
    fake=lambda dy, x, norm_weight, eps, sums: (
        x.new_empty(*x.shape),
        x.new_empty(x.shape[1] if sums else 0, dtype=sums_dtype(x, norm_weight)),
    ),
)
def _rms_norm_gelu_backward(
    dy: torch.Tensor, x: torch.Tensor, norm_weight: torch.Tensor | None, eps: float, sums: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """dx and, if ``sums``, the gradient of the norm's weight; else an empty tensor."""
    rows, columns = x.shape
    block = next_power_of_2(columns)
    if rows == 0 or block > _SUMMED:
        normed, rstd = _rms_norm(x, norm_weight, eps, True, "")
        dnormed = _gelu_backward(dy, normed, APPROXIMATE["none"], "")
        return rms_norm_backward(dnormed, None, x, norm_weight, rstd, sums, "")
    dx = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    # As many programs per SM as have registers for their sums.
    programs = min(rows, max(1, min(4, 8192 // block)) * multiprocessors(x))
    partial = torch.empty((1, programs, columns), device=x.device) if sums else None
    launch(
        rms_norm_gelu_backward_kernel, (programs,), dx, partial, dy, x, norm_weight, x.stride(0), rows, columns, eps,
        BLOCK=block, num_warps=min(16, max(1, block // 512)),
    )  # fmt: skip
    if partial is None:
        return dx, torch.empty(0, dtype=sums_dtype(x, norm_weight), device=x.device)
    return dx, sum_partials(partial, sums_dtype(x, norm_weight))[0]


#: The norm's warps.
CONFIGS = tuple({"num_warps": warps} for warps in (4, 8, 16))
#: Bytes of the longest row, which stays in registers between its statistics and its use.
_HELD = 131072


def _product_of_normed(
    x: torch.Tensor, norm_weight: torch.Tensor | None, norm_bias: torch.Tensor | None, weight: torch.Tensor,
    bias: torch.Tensor | None, eps: float, rms_gelu: bool, config: str,
) -> torch.Tensor:  # fmt: skip
    """The result (M, N) of x (M, K), with stride 1 along K, and weight (N, K)."""
    if x.shape[0] == 0 or weight.shape[0] == 0:
        return x.new_empty(x.shape[0], weight.shape[0])
    normed = normed_rows(x, norm_weight, norm_bias, eps, rms_gelu, **(unpack(config) or {}))
    return torch.mm(normed, weight.T) if bias is None else torch.addmm(bias, normed, weight.T)


@operator(
    "layer_norm_linear", autocast="lower", fake=lambda x, _, __, weight, *___: x.new_empty(x.shape[0], weight.shape[0])
)
def _layer_norm_linear(
    x: torch.Tensor, norm_weight: torch.Tensor | None, norm_bias: torch.Tensor | None, weight: torch.Tensor,
    bias: torch.Tensor | None, eps: float, config: str,
) -> torch.Tensor:  # fmt: skip
    return _product_of_normed(x, norm_weight, norm_bias, weight, bias, eps, False, config)


@_layer_norm_linear.gradient(lambda *arguments: arguments[:4])
def _differentiate_layer_norm(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """The gradients of x, the norm's weight and bias, the layer's weight and its bias."""
    x, norm_weight, norm_bias, weight = ctx.saved_tensors
    wants_dx, wants_gain, wants_shift, wants_dw, wants_db, _, _ = ctx.needs_input_grad
    normed, stats = _layer_norm(x, norm_weight, norm_bias, ctx.rest[0], True, "")
    dw = dy.T @ normed if wants_dw else None
    dx = gain = shift = None
    if wants_dx or wants_gain or wants_shift:
        dx, sums = _layer_norm_backward(dy @ weight, x, norm_weight, stats, wants_gain or wants_shift, "")
        gain, shift = sums.unbind()
    found = (dx, gain, shift, dw, dy.sum(0) if wants_db else None)
    return tuple(each if wanted else None for each, wanted in zip(found, ctx.needs_input_grad, strict=False))


@operator(
    "rms_norm_gelu_linear", autocast="lower", fake=lambda x, _, weight, *__: x.new_empty(x.shape[0], weight.shape[0])
)
def _rms_norm_gelu_linear(
    x: torch.Tensor, norm_weight: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, config: str,
) -> torch.Tensor:  # fmt: skip
    return _product_of_normed(x, norm_weight, None, weight, bias, eps, True, config)


@_rms_norm_gelu_linear.gradient(lambda *arguments: arguments[:3])
def _differentiate_rms_norm(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """The gradients of x, the norm's weight, the layer's weight and its bias, through GELU."""
    x, norm_weight, weight = ctx.saved_tensors
    wants_dx, wants_gain, wants_dw, wants_db, _, _ = ctx.needs_input_grad
    (eps, _), dx, gain = ctx.rest, None, None
    dw = dy.T @ _rms_norm_gelu(x, norm_weight, eps) if wants_dw else None
    if wants_dx or wants_gain:
        dx, gain = _rms_norm_gelu_backward(dy @ weight, x, norm_weight, eps, wants_gain)
    return dx if wants_dx else None, gain if wants_gain else None, dw, dy.sum(0) if wants_db else None


def _check(weight: torch.Tensor, bias: torch.Tensor | None, **others: torch.Tensor | None) -> int:
    """Check the arguments of both functions and return the columns of x. ``others`` are x and the norm's parameters."""
    check_tensors(**others, weight=weight, bias=bias)
    x = others["x"]
    if x is None or x.dim() == 0:
        raise ValueError("x has no dimension: give (..., columns)")
    columns = x.shape[-1]
    if weight.dim() != 2 or weight.shape[1] != columns:
        raise ValueError(f"weight has shape {tuple(weight.shape)}: give (columns out, {columns}) beside this x")
    for name, tensor in others.items():
        if name != "x" and tensor is not None and tuple(tensor.shape) != (columns,):
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}: give one number a column of x, ({columns},)")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias has shape {tuple(bias.shape)}: give one number a row of weight, ({weight.shape[0]},)")
    if columns * x.element_size() > _HELD or columns == 0:
        raise ValueError(f"x has {columns} columns: give 1 to {_HELD // x.element_size()} of {x.dtype}")
    return columns


def layer_norm_linear(
    x: torch.Tensor, norm_weight: torch.Tensor | None, norm_bias: torch.Tensor | None, weight: torch.Tensor,
    bias: torch.Tensor | None = None, eps: float = 1e-5, *, config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """``linear(layer_norm(x), weight, bias)`` of x (..., columns), over the last dimension; once differentiable.

    ``norm_weight`` and ``norm_bias`` (columns) and ``bias`` (columns out) may be None; ``weight`` is (columns out,
    columns). All have one dtype (fp32, fp16, bf16). Products accumulate in fp32; those of fp32 by cuBLAS follow PyTorch's
    tf32 settings. ``config`` is one of ``CONFIGS``. Raises ValueError, naming the argument, for other dtypes, shapes that do
    not fit, rows of more than 128 KB, and devices without CUDA.
    """
    if not use_triton():
        return layer_norm_reference(x, norm_weight, norm_bias, weight, bias, eps)
    columns = _check(weight, bias, x=x, norm_weight=norm_weight, norm_bias=norm_bias)
    norm_weight, norm_bias, bias = map(as_vector, (norm_weight, norm_bias, bias))
    y = _layer_norm_linear(as_rows(x, columns), norm_weight, norm_bias, weight.contiguous(), bias, eps, pack(config))
    return y.reshape(*x.shape[:-1], weight.shape[0])


def rms_norm_gelu_linear(
    x: torch.Tensor, norm_weight: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor | None = None,
    eps: float | None = None, *, config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """``linear(gelu(rms_norm(x)), weight, bias)``, with GELU by the error function; otherwise as ``layer_norm_linear``.

    ``eps`` is fp32's machine epsilon by default. ``config`` is one of ``CONFIGS``. The product is cuBLAS's.
    """
    if not use_triton():
        return gelu_reference(x, norm_weight, weight, bias, eps)
    columns = _check(weight, bias, x=x, norm_weight=norm_weight)
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    y = _rms_norm_gelu_linear(as_rows(x, columns), as_vector(norm_weight), weight, bias, eps, pack(config))
    return y.reshape(*x.shape[:-1], weight.shape[0])


def layer_norm_reference(
    x: torch.Tensor, norm_weight: torch.Tensor | None, norm_bias: torch.Tensor | None, weight: torch.Tensor,
    bias: torch.Tensor | None = None, eps: float = 1e-5,
) -> torch.Tensor:  # fmt: skip
    """The reference in plain PyTorch."""
    return F.linear(F.layer_norm(x, x.shape[-1:], norm_weight, norm_bias, eps), weight, bias)


def gelu_reference(
    x: torch.Tensor, norm_weight: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor | None = None, eps: float | None = None,
) -> torch.Tensor:  # fmt: skip
    """The reference in plain PyTorch."""
    return F.linear(F.gelu(F.rms_norm(x, x.shape[-1:], norm_weight, eps)), weight, bias)


@drawn
def layer_norm_inputs(draw: Draw, m: int, n: int, k: int) -> dict[str, Any]:
    """``x`` (m, k), a norm weight around 1 and a norm bias, ``weight`` (n, k) that preserves the variance, and ``bias``."""
    x, norm_weight = draw(m, k, grad=True), draw(k, scale=0.2, shift=1.0, grad=True)
    norm = {"norm_weight": norm_weight, "norm_bias": draw(k, scale=0.2, grad=True)}
    weight = draw(n, k, scale=1.0 / math.sqrt(max(1, k)), grad=True)
    return {"x": x, **norm, "weight": weight, "bias": draw(n, grad=True), "eps": 1e-5}


def gelu_inputs(workload: Workload, device: Any) -> dict[str, Any]:
    """As ``layer_norm_inputs``, without the norm's bias."""
    drawn = layer_norm_inputs(workload, device)
    return {name: value for name, value in drawn.items() if name != "norm_bias"}


def _cost(workload: Workload, direction: str, norm: int, vectors: int) -> Cost:
    """2MNK operations per product (backward has two), MN for the bias or its gradient, and ``norm`` per element of x.

    The norm has ``vectors`` parameters of K elements.
    """
    m, n, k = workload.dims.values()
    operands, result, rest = m * k + n * k + vectors * k, m * n, m * n + norm * m * k
    products, read, written = (1, n, result) if direction == FORWARD else (2, result, operands + n)
    size, flops = workload.itemsize, products * 2 * m * n * k + rest
    return Cost(flops, (operands + read) * size, written * size, workload.pipe)


def layer_norm_cost(workload: Workload, direction: str) -> Cost:
    """LayerNorm takes 7 operations per element forward and 13 backward, as in ``layer_norm``."""
    return _cost(workload, direction, 7 if direction == FORWARD else 13, 2)


def gelu_cost(workload: Workload, direction: str) -> Cost:
    """RMSNorm takes 4 operations per element forward and 9 backward, as in ``rms_norm``, and GELU by the error function 5.

    Backward recomputes GELU (5, and one for its argument), and takes 4 for the derivative of the error function and 3 for
    the product rule and dy.
    """
    return _cost(workload, direction, 9 if direction == FORWARD else 22, 1)


SIZES = (
    "small 512x128x512-bf16, medium 2048x2048x2048-bf16, large 16384x4096x4096-bf16, ragged 517x769x1023-fp16, "
    "narrow 32768x1024x4096-bf16, broad 4096x14336x4096-bf16, empty 0x1024x1024-bf16"
)
TOLERANCE = {"fp32": 1e-5, "fp16": 9e-4, "bf16": 7e-3}

LAYER_NORM_LINEAR = declare(
    "layer_norm_linear", "linear(layer_norm(x))", "m n k", SIZES,
    triton=Implementation(layer_norm_linear, "the norm in one pass, then cuBLAS", CONFIGS),
    eager=Implementation(layer_norm_reference, "layer_norm, then linear (cuBLAS)"),
    reference=layer_norm_reference, inputs=layer_norm_inputs, cost=layer_norm_cost, tolerance=TOLERANCE, passes="forward backward",
)  # fmt: skip

RMS_NORM_GELU_LINEAR = declare(
    "rms_norm_gelu_linear", "linear(gelu(rms_norm(x)))", "m n k", SIZES,
    triton=Implementation(rms_norm_gelu_linear, "norm and GELU in one pass, then cuBLAS", CONFIGS),
    eager=Implementation(gelu_reference, "rms_norm, gelu, then linear (cuBLAS)"),
    reference=gelu_reference, inputs=gelu_inputs, cost=gelu_cost, tolerance=TOLERANCE, passes="forward backward",
)  # fmt: skip
