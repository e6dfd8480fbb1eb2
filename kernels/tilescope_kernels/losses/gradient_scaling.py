"""Backward pass of a loss that computed its gradient in the forward pass: scale it by the incoming gradient."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.launching import launch, multiprocessors
from tilescope_kernels._shared.operators import operator, requires_gradient


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
