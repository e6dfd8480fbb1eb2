"""Gradients of the norms that are fused with linear layers: the norms' own, between cuBLAS's products.

Of the forward pass x alone is kept. Its normed rows are computed again for the gradient of the weight: one pass over x,
where keeping them costs a tensor as large as x.
"""

from __future__ import annotations

from typing import Any

import torch

from tilescope_kernels.elementwise.gelu import APPROXIMATE, _gelu, _gelu_backward
from tilescope_kernels.norms.layer_norm import _layer_norm, _layer_norm_backward
from tilescope_kernels.norms.rms_norm import _rms_norm, _rms_norm_backward


def save_layer_norm(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    """Keep what ``differentiate_layer_norm`` reads, of the arguments of ``layer_norm_linear``."""
    x, norm_weight, norm_bias, weight, _, ctx.eps, _ = inputs
    ctx.save_for_backward(x, norm_weight, norm_bias, weight)


def differentiate_layer_norm(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """The gradients of x, the norm's weight and bias, the layer's weight and its bias."""
    x, norm_weight, norm_bias, weight = ctx.saved_tensors
    wants_dx, wants_gain, wants_shift, wants_dw, wants_db, _, _ = ctx.needs_input_grad
    normed, stats = _layer_norm(x, norm_weight, norm_bias, ctx.eps, True, "")
    dw = dy.T @ normed if wants_dw else None
    dx = gain = shift = None
    if wants_dx or wants_gain or wants_shift:
        dx, sums = _layer_norm_backward(dy @ weight, x, norm_weight, stats, wants_gain or wants_shift, "")
        gain, shift = sums.unbind()
    return (
        dx if wants_dx else None, gain if wants_gain else None, shift if wants_shift else None, dw,
        dy.sum(0) if wants_db else None, None, None,
    )  # fmt: skip


def save_rms_norm(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    """Keep what ``differentiate_rms_norm`` reads, of the arguments of ``rms_norm_gelu_linear``."""
    x, norm_weight, weight, _, ctx.eps, _ = inputs
    ctx.save_for_backward(x, norm_weight, weight)


def differentiate_rms_norm(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """The gradients of x, the norm's weight, the layer's weight and its bias, through GELU."""
    x, norm_weight, weight = ctx.saved_tensors
    wants_dx, wants_gain, wants_dw, wants_db, _, _ = ctx.needs_input_grad
    normed, rstd = _rms_norm(x, norm_weight, ctx.eps, True, "")
    dw = dy.T @ _gelu(normed, APPROXIMATE["none"], "") if wants_dw else None
    dx = gain = None
    if wants_dx or wants_gain:
        dnormed = _gelu_backward(dy @ weight, normed, APPROXIMATE["none"], "")
        dx, gain = _rms_norm_backward(dnormed, x, norm_weight, rstd, wants_gain, "")
    return (
        dx if wants_dx else None, gain if wants_gain else None, dw, dy.sum(0) if wants_db else None, None, None
    )  # fmt: skip
