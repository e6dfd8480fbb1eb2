"""Gradients of the norms that are fused with linear layers: the norms' own kernels between cuBLAS's products.

Only x is saved. The normalized rows are recomputed for the weight's gradient: one pass over x, where saving them would cost
a tensor as large as x. RMSNorm and GELU have one backward pass together.
"""

from __future__ import annotations

from typing import Any

import torch

from tilescope_kernels._shared.launching import launch, multiprocessors, next_power_of_2
from tilescope_kernels._shared.operators import operator
from tilescope_kernels._shared.weight_gradients import sum_partials, sums_dtype
from tilescope_kernels.elementwise.gelu import APPROXIMATE, _gelu_backward
from tilescope_kernels.norms.layer_norm import _layer_norm, _layer_norm_backward
from tilescope_kernels.norms.norm_linear_kernels import normed_rows_kernel, rms_norm_gelu_backward_kernel
from tilescope_kernels.norms.rms_norm import _rms_norm
from tilescope_kernels.norms.rms_norm_backward import rms_norm_backward

#: Most columns of one program, whose fp32 sums for the weight's gradient then take a quarter of an SM's registers.
_SUMMED = 16384


def differentiate_layer_norm(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
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


@operator("rms_norm_gelu", fake=lambda x, *_: x.new_empty(x.shape))
def _rms_norm_gelu(x: torch.Tensor, norm_weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    return normed_rows(x, norm_weight, None, eps, True)


@operator(
    "rms_norm_gelu_backward",
    fake=lambda dy, x, norm_weight, eps, sums: (
        x.new_empty(x.shape),
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
        rms_norm_gelu_backward_kernel, (programs,),
        dx, partial, dy, x, norm_weight, x.stride(0), rows, columns, eps,
        BLOCK=block, num_warps=min(16, max(1, block // 512)),
    )  # fmt: skip
    if partial is None:
        return dx, torch.empty(0, dtype=sums_dtype(x, norm_weight), device=x.device)
    return dx, sum_partials(partial, sums_dtype(x, norm_weight))[0]


def differentiate_rms_norm(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """The gradients of x, the norm's weight, the layer's weight and its bias, through GELU."""
    x, norm_weight, weight = ctx.saved_tensors
    wants_dx, wants_gain, wants_dw, wants_db, _, _ = ctx.needs_input_grad
    (eps, _), dx, gain = ctx.rest, None, None
    dw = dy.T @ _rms_norm_gelu(x, norm_weight, eps) if wants_dw else None
    if wants_dx or wants_gain:
        dx, gain = _rms_norm_gelu_backward(dy @ weight, x, norm_weight, eps, wants_gain)
    return dx if wants_dx else None, gain if wants_gain else None, dw, dy.sum(0) if wants_db else None
