"""Class weights of cross-entropy: each row's loss times the weight of its target."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tilescope_kernels._shared.checks import FLOATING


def check_weight(x: torch.Tensor, weight: torch.Tensor, classes: int) -> None:
    """Raise ValueError for class weights that ``cross_entropy`` does not support."""
    if tuple(weight.shape) != (classes,):
        raise ValueError(f"weight has shape {tuple(weight.shape)}: give one number a class, ({classes},)")
    if weight.dtype not in FLOATING:
        raise ValueError(f"weight is {weight.dtype}: give torch.float32, torch.float16 or torch.bfloat16")
    if weight.device != x.device:
        raise ValueError(f"weight is on {weight.device} but x is on {x.device}: move one of them")
    if weight.requires_grad and torch.is_grad_enabled():
        raise ValueError("weight requires a gradient and has none: pass weight.detach()")


def weighed(
    losses: Callable[[float], torch.Tensor], x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor, ignore_index: int,
    reduction: str, smoothing: float,
) -> torch.Tensor:  # fmt: skip
    """Weigh the fp32 losses of rows (0 where ignored) by their targets' weights and reduce them as PyTorch does.

    ``losses(smoothing)`` are the losses of equal weights. A mean divides by the sum of the targets' weights. PyTorch's operators
    compute it, on one number per row; with label smoothing they also multiply an fp32 copy of ``x`` by the weights.
    """
    weight, here = weight.float(), target != ignore_index
    counts = here & (target >= 0) & (target < weight.shape[0])
    weights = torch.where(counts, weight[torch.where(counts, target, 0)], 0.0)
    # A target that is no class has weight 0, but its loss is NaN and so is the product.
    products = losses(0.0) * weights
    if smoothing:
        # The mean over classes of weight * (log-sum-exp - x). Equal weights are the kernel's part.
        mean = weight.mean()
        apart = torch.where(here, x.float() @ (weight - mean), 0.0) / weight.shape[0]
        products = (1.0 - smoothing) * products + smoothing * (mean * losses(1.0) - apart)
    if reduction == "none":
        return products
    return products.sum() / weights.sum() if reduction == "mean" else products.sum()
