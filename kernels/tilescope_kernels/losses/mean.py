"""Reduction of the rows' losses, the number of rows that are not ignored, and scaling of a gradient that the forward pass computed."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.launching import launch, multiprocessors, next_power_of_2
from tilescope_kernels._shared.operators import operator, requires_gradient

#: Most rows for which one program is faster than the several launches of PyTorch's operators.
_MOST = 64 * 1024


@triton.jit
def reduce_losses_kernel(
    out_ptr, count_ptr, loss_ptr, target_ptr, rows, ignore_index, MEAN: tl.constexpr, BLOCK: tl.constexpr
):
    """Reduce in one program, so in a fixed order. Without ``loss`` it only counts rows; ``count`` may be None."""
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    counted = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, rows, BLOCK):
        mask = start + lane < rows
        if loss_ptr is not None:
            total += tl.load(loss_ptr + start + lane, mask=mask, other=0.0)
        if MEAN:
            target = tl.load(target_ptr + start + lane, mask=mask, other=0)
            counted += (mask & (target != ignore_index)).to(tl.int32)
    count = tl.sum(counted, axis=0)
    if loss_ptr is not None:
        out = tl.sum(total, axis=0)
        if MEAN:
            out = out / count.to(tl.float32)
        tl.store(out_ptr, out.to(out_ptr.dtype.element_ty))
    if count_ptr is not None:
        tl.store(count_ptr, count.to(tl.int64))


def _launch(
    out: torch.Tensor | None, count: torch.Tensor | None, loss: torch.Tensor | None, target: torch.Tensor,
    ignore_index: int, mean: bool,
) -> None:  # fmt: skip
    rows = target.numel()
    block = min(8192, next_power_of_2(max(32, rows)))
    launch(
        reduce_losses_kernel, (1,),
        out, count, loss, target, rows, ignore_index,
        MEAN=mean, BLOCK=block, num_warps=max(1, block // 256),
    )  # fmt: skip


def count_rows(target: torch.Tensor, ignore_index: int) -> torch.Tensor:
    """The number of elements of ``target`` that are not ``ignore_index``, as an int64 scalar tensor."""
    if target.numel() > _MOST:
        return (target != ignore_index).sum()
    count = torch.empty((), dtype=torch.int64, device=target.device)
    _launch(None, count, None, target, ignore_index, True)
    return count


def reduced(
    loss: torch.Tensor, target: torch.Tensor, ignore_index: int, reduction: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reduce the fp32 losses of rows to ``dtype``. Returns the result and, for a mean, the number of rows that count.

    ``reduction`` is 0 for none, 1 for the mean over the rows that are not ignored, 2 for the sum.
    """
    none = target.new_empty(0, dtype=torch.int64)
    if reduction == 0:
        return loss.to(dtype), none
    if target.numel() > _MOST:
        count = (target != ignore_index).sum()
        return (loss.sum() / count if reduction == 1 else loss.sum()).to(dtype), count if reduction == 1 else none
    out = torch.empty((), dtype=dtype, device=loss.device)
    count = torch.empty((), dtype=torch.int64, device=loss.device) if reduction == 1 else none
    _launch(out, count if reduction == 1 else None, loss, target, ignore_index, reduction == 1)
    return out, count


@triton.jit
def scale_rows_kernel(x_ptr, factor_ptr, factor_stride, target_ptr, ignore_index, rows, columns, BLOCK: tl.constexpr):
    """Multiply rows ``program, program + programs, ...`` by their factors in place.

    Rows with factor 1 are skipped, and those whose target is ``ignore_index`` unless ``target_ptr`` is None.
    """
    offsets = tl.arange(0, BLOCK)
    for index in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = index + tl.full((), 0, tl.int64)  # int64; the interpreter's loop index has no .to()
        factor = tl.load(factor_ptr + row * factor_stride).to(tl.float32)
        scales = factor != 1.0
        if target_ptr is not None:
            scales = scales & (tl.load(target_ptr + row, mask=scales, other=0) != ignore_index)
        if scales:
            x_row = x_ptr + row * columns
            for start in range(0, columns, BLOCK):
                mask = start + offsets < columns
                x = tl.load(x_row + start + offsets, mask=mask).to(tl.float32) * factor
                tl.store(x_row + start + offsets, x.to(x_ptr.dtype.element_ty), mask=mask)


@operator("scale_rows_", mutates=("x",), fake=lambda *_: None)
def scale_rows_(
    x: torch.Tensor, factor: torch.Tensor, target: torch.Tensor | None = None, ignore_index: int = 0
) -> None:  # fmt: skip
    """Multiply the rows of a contiguous matrix in place, by one factor or one per row. Factors are not copied to the host.

    Rows whose ``target`` is ``ignore_index`` stay as they are.
    """
    rows, columns = x.shape
    if x.numel():
        # No more programs than fit the SMs: the factor is usually 1, and then their launch is the whole cost.
        programs = min(rows, 16 * multiprocessors(x))
        launch(
            scale_rows_kernel, (programs,),
            x, factor, factor.stride(0) if factor.dim() else 0, target, ignore_index, rows, columns,
            BLOCK=4096,
        )  # fmt: skip


def scaled(
    gradient: torch.Tensor, factor: torch.Tensor, target: torch.Tensor | None = None, ignore_index: int = 0
) -> torch.Tensor:  # fmt: skip
    """Multiply the saved gradient by the incoming one, in place.

    The rows whose ``target`` is ``ignore_index`` are 0, and stay so: times an incoming infinity or NaN they would be NaN.

    The saved tensor changes, so autograd refuses a second backward pass. torch.compile cannot trace that, and several
    incoming gradients need the saved one: for them the product is a new tensor.
    """
    if type(gradient) is not torch.Tensor or requires_gradient((factor,)) is None:
        if target is not None:
            factor = torch.where(target == ignore_index, torch.ones_like(factor), factor)
        return gradient * (factor[:, None] if factor.dim() else factor)
    scale_rows_(gradient if gradient.dim() == 2 else gradient[None], factor, target, ignore_index)
    return gradient
