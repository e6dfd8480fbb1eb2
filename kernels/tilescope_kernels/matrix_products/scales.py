"""Scales of a product's operands, in the epilogue: one of each operand, or one of each row of a and column of b."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _scaled(total, scale_a_ptr, scale_b_ptr, start_m, start_n, M, N, SCALES: tl.constexpr):
    """Scale ``total``: by a scale per operand (``SCALES`` 1), by scales per row and column (2), or not (0)."""
    if SCALES == 1:
        return total.to(tl.float32) * (tl.load(scale_a_ptr) * tl.load(scale_b_ptr))
    elif SCALES == 2:
        m = start_m + tl.arange(0, total.shape[0])
        n = start_n + tl.arange(0, total.shape[1])
        scale_a = tl.load(scale_a_ptr + m, mask=m < M, other=0.0)
        scale_b = tl.load(scale_b_ptr + n, mask=n < N, other=0.0)
        return total.to(tl.float32) * scale_a[:, None] * scale_b[None, :]
    else:
        return total


def kind(scales: tuple[torch.Tensor, torch.Tensor] | tuple[None, None]) -> int:
    """``SCALES`` of the kernels: 0 without scales, 1 per operand, 2 per row and column."""
    return 0 if scales[0] is None else 2 if scales[0].dim() else 1
