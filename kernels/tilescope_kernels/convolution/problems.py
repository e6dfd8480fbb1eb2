"""Helpers of all convolutions: checks of the arguments, extents of the result, and the gradients, which are cuDNN's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from tilescope_kernels._shared import reach
from tilescope_kernels._shared.checks import check_tensors
from tilescope_kernels._shared.launching import BEYOND

#: Kernels count the pixels of a launch in 32 bits, with those of the last tile that do not exist.
_MOST_PIXELS = BEYOND - 1024


def _out_extent(extent: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Extent of the result along one side."""
    return (extent + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def out_shape(
    x: torch.Tensor, weight: torch.Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> list[int]:
    """Shape of the result, for images and filters with channels last."""
    sides = zip(x.shape[1:3], weight.shape[1:3], stride, padding, dilation, strict=True)
    return [x.shape[0], *(_out_extent(*side) for side in sides), weight.shape[0]]


def _pair(name: str, value: int | Sequence[int], least: int) -> tuple[int, ...]:
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2 or any(not isinstance(part, int) or part < least for part in pair):
        raise ValueError(f"{name} is {value!r}: give a whole number of at least {least}, or two, down and across")
    return pair


def checked(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: int | Sequence[int],
    padding: int | Sequence[int], dilation: int | Sequence[int], groups: int,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:  # fmt: skip
    """Check the arguments of a convolution of (batch, channels, height, width).

    Returns stride, padding and dilation, each as (down, across); a call with tuples keeps its plan. Raises ValueError, naming the argument,
    where PyTorch's ``conv2d`` has no result.
    """
    check_tensors(input=input, weight=weight, bias=bias)
    for name, tensor in (("input", input), ("weight", weight)):
        if tensor.dim() != 4:
            raise ValueError(f"{name} has {tensor.dim()} dimensions: give 4")
    channels, filters = input.shape[1], weight.shape[0]
    if not isinstance(groups, int) or groups < 1:
        raise ValueError(f"groups is {groups!r}: give a whole number of at least 1")
    for what, count in (("channels of input", channels), ("filters of weight", filters)):
        if count % groups:
            raise ValueError(f"groups is {groups}: it must divide the {count} {what}")
    if weight.shape[1] * groups != channels:
        among = f" in {groups} groups, {channels // groups} each" if groups > 1 else ""
        raise ValueError(f"weight has {weight.shape[1]} channels but input has {channels}{among}: they must be equal")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias has shape {tuple(bias.shape)}: give one number a filter, ({filters},)")
    steps = _pair("stride", stride, 1), _pair("padding", padding, 0), _pair("dilation", dilation, 1)
    extents = (_out_extent(*side) for side in zip(input.shape[2:], weight.shape[2:], *steps, strict=True))
    if min(extents) < 1 or 0 in weight.shape[1:]:
        raise ValueError(
            f"weight has shape {tuple(weight.shape)}: too large for images of {tuple(input.shape[2:])}, or empty"
        )
    return steps


def slabs(y: torch.Tensor, x: torch.Tensor) -> Iterable[tuple[torch.Tensor, ...]]:
    """The result ``y`` (images, rows, columns, filters) and the images ``x``, in parts whose pixels can be counted: one, almost always.

    Raises ValueError for a result whose single images have too many pixels.
    """
    pixels = y.shape[1] * y.shape[2]
    if pixels > _MOST_PIXELS:
        raise ValueError(
            f"input gives images of {y.shape[1]}x{y.shape[2]}: give parts, with results of up to {_MOST_PIXELS} pixels"
        )
    return reach.slabs(_MOST_PIXELS // pixels, y, x)


def gradients(
    ctx: Any, dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor | None, groups: int
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of images, filters and bias, for tensors in PyTorch's layout. ``y`` is the result if it had a ReLU, else None."""
    if y is not None:
        dy = torch.ops.aten.threshold_backward(dy, y, 0)
    bias = None if ctx.dtypes[2] is None else [weight.shape[0]]
    found: tuple[torch.Tensor | None, ...] = torch.ops.aten.convolution_backward(
        dy, x, weight, bias, *ctx.rest[:3], False, [0, 0], groups, ctx.needs_input_grad[:3]
    )
    return found


def saved(x: torch.Tensor, weight: torch.Tensor, *rest: Any) -> tuple[torch.Tensor | None, ...]:
    """What an operator's gradient needs of its arguments and its result."""
    *_, relu, _, y = rest
    return x, weight, y if relu else None


def differentiate(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Gradients of an operator whose tensors have channels last."""
    x, weight, y = (None if tensor is None else tensor.permute(0, 3, 1, 2) for tensor in ctx.saved_tensors)
    _, _, _, *groups, _, _ = ctx.rest
    *found, db = gradients(ctx, dy.contiguous().permute(0, 3, 1, 2), x, weight, y, *(groups or (1,)))
    images, filters = (None if grad is None else grad.permute(0, 2, 3, 1) for grad in found)
    return images, filters, db
