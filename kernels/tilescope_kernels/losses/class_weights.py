"""Class weights of cross-entropy: each row's loss times the weight of its target."""

from __future__ import annotations

import torch

from tilescope_kernels._shared.launching import FLOATING


def check_weight(x: torch.Tensor, weight: torch.Tensor, classes: int, label_smoothing: float) -> None:
    """Raise ValueError for class weights that ``cross_entropy`` does not support."""
    if tuple(weight.shape) != (classes,):
        raise ValueError(f"weight has shape {tuple(weight.shape)}: give one number a class, ({classes},)")
    if weight.dtype not in FLOATING:
        raise ValueError(f"weight is {weight.dtype}: give torch.float32, torch.float16 or torch.bfloat16")
    if weight.device != x.device:
        raise ValueError(f"weight is on {weight.device} but x is on {x.device}: move one of them")
    if weight.requires_grad and torch.is_grad_enabled():
        raise ValueError("weight requires a gradient and has none: pass weight.detach()")
    if label_smoothing:
        raise ValueError(f"label_smoothing is {label_smoothing} beside weight: give one of them")


def weighed(
    losses: torch.Tensor, target: torch.Tensor, weight: torch.Tensor, ignore_index: int, reduction: str
) -> torch.Tensor:
    """Weigh the fp32 losses of rows (0 where ignored) by their targets' weights and reduce them as PyTorch does.

    A mean divides by the sum of the weights. PyTorch's operators compute it, on one number per row.
    """
    counts = (target != ignore_index) & (target >= 0) & (target < weight.shape[0])
    weights = torch.where(counts, weight.float()[torch.where(counts, target, 0)], 0.0)
    # A target that is no class has weight 0, but its loss is NaN and so is the product.
    products = losses * weights
    if reduction == "none":
        return products
    return products.sum() / weights.sum() if reduction == "mean" else products.sum()
