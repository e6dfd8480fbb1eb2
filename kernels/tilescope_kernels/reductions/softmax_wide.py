"""Softmax's kernels for rows that are cut into parts, forward and backward."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.cut_rows import GATHER, PUBLISH, cut, gather, publish
from tilescope_kernels._shared.launching import device_of
from tilescope_kernels._shared.online_softmax import LOG2_E, exp, finite
from tilescope_kernels._shared.row_tiles import narrow


@triton.jit
def softmax_parts_kernel(
    y_ptr, words_ptr, x_ptr, x_stride, rows, columns, parts,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, PHASE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One part of the rows ``group, group + groups, ...``, which share each part's maximum and sum of exponentials."""
    part = tl.program_id(0) % parts
    group = tl.program_id(0) // parts
    groups = tl.num_programs(0) // parts
    column = part * BLOCK + tl.arange(0, BLOCK)
    mask = column < columns
    for row in tl.range(group, rows, groups, num_stages=STAGES):
        start = row + tl.full((), 0, tl.int64)  # 64 bits wide; interpreted, a loop's index has no .to()
        x = tl.load(x_ptr + start * x_stride + column, mask=mask, other=float("-inf"))
        if PHASE != GATHER:
            largest = tl.max(x.to(tl.float32), axis=0)
            total = tl.sum(exp(x.to(tl.float32) - finite(largest)), axis=0)
            publish(words_ptr + start * parts + part, largest, total)
        if PHASE != PUBLISH:
            maxima, totals, exist = gather(words_ptr + start * parts, parts, PARTS, PHASE)
            shift = finite(tl.max(maxima, axis=0))
            total = tl.sum(tl.where(exist, totals * exp(maxima - shift), 0.0), axis=0)
            # Infinite only where x is, and 0 only for a row of -inf, both of which are NaN in PyTorch.
            offset = tl.where((total == float("inf")) | (total == 0.0), float("nan"), -tl.log2(total))
            # The maximum is subtracted apart: beside large numbers, its sum with the logarithm would be rounded too coarsely.
            y = tl.exp2((narrow(x, columns).to(tl.float32) - shift) * LOG2_E + offset)
            tl.store(y_ptr + start * columns + column, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def softmax_parts_backward_kernel(
    dx_ptr, words_ptr, dy_ptr, y_ptr, rows, columns, parts,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, PHASE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """``dx = (dy - sum(dy * y)) * y`` of one part of the rows ``group, group + groups, ...``."""
    part = tl.program_id(0) % parts
    group = tl.program_id(0) // parts
    groups = tl.num_programs(0) // parts
    column = part * BLOCK + tl.arange(0, BLOCK)
    mask = column < columns
    for row in tl.range(group, rows, groups, num_stages=STAGES):
        start = row + tl.full((), 0, tl.int64)  # 64 bits wide; interpreted, a loop's index has no .to()
        dy = tl.load(dy_ptr + start * columns + column, mask=mask, other=0.0)
        y = tl.load(y_ptr + start * columns + column, mask=mask, other=0.0)
        if PHASE != GATHER:
            inner = tl.sum(dy.to(tl.float32) * y.to(tl.float32), axis=0)
            publish(words_ptr + start * parts + part, inner, tl.full((), 0, tl.float32))
        if PHASE != PUBLISH:
            inners, _, exist = gather(words_ptr + start * parts, parts, PARTS, PHASE)
            inner = tl.sum(tl.where(exist, inners, 0.0), axis=0)
            dx = (narrow(dy, columns).to(tl.float32) - inner) * narrow(y, columns).to(tl.float32)
            tl.store(dx_ptr + start * columns + column, dx.to(dx_ptr.dtype.element_ty), mask=mask)


def softmax_in_parts(
    y: torch.Tensor, x: torch.Tensor, *, block: int = 8192, programs: int = 3, warps: int = 8, stages: int = 3
) -> None:
    """Fill y."""
    rows, columns = x.shape
    cuts = cut(x, block, programs, warps)
    with device_of(x):
        for phase, options in cuts.launches:
            softmax_parts_kernel[cuts.grid](
                y, cuts.words, x, x.stride(0), rows, columns, cuts.parts,
                BLOCK=block, PARTS=triton.next_power_of_2(cuts.parts), PHASE=phase, STAGES=stages, **options,
            )  # fmt: skip


def softmax_backward_in_parts(
    dx: torch.Tensor, dy: torch.Tensor, y: torch.Tensor,
    *, block: int = 4096, programs: int = 4, warps: int = 8, stages: int = 3,
) -> None:  # fmt: skip
    """Fill dx."""
    rows, columns = y.shape
    cuts = cut(y, block, programs, warps)
    with device_of(y):
        for phase, options in cuts.launches:
            softmax_parts_backward_kernel[cuts.grid](
                dx, cuts.words, dy, y, rows, columns, cuts.parts,
                BLOCK=block, PARTS=triton.next_power_of_2(cuts.parts), PHASE=phase, STAGES=stages, **options,
            )  # fmt: skip
