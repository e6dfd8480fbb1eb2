"""Sum of the parts of a product that was split along K, times the scales of INT8 weights."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from tilescope_kernels._shared.launching import capability, cdiv, launch


@triton.jit
def w8a16_sum_kernel(
    y_ptr, partial_ptr, scale_ptr, size, N, SPLIT: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """Add up the parts of y in a fixed order, which is deterministic, and scale the sum."""
    if PDL:
        gdc_wait()
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    total = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(SPLIT):
        total += tl.load(partial_ptr + part * size + offsets, mask=mask, other=0.0)
    total *= tl.load(scale_ptr + offsets % N, mask=mask, other=0.0)
    tl.store(y_ptr + offsets, total.to(y_ptr.dtype.element_ty), mask=mask)


#: Elements of y per program of ``w8a16_sum_kernel``.
_SUMMED = 512


def add_parts(y: torch.Tensor, parts: torch.Tensor, scale: torch.Tensor) -> None:
    """Write the sum of ``parts`` (SPLIT, M, N), scaled, to y (M, N)."""
    size, n = y.numel(), y.shape[1]
    # Programmatic dependent launch: the kernel starts early and waits for the parts.
    pdl = capability(y) >= 90
    launch(
        w8a16_sum_kernel, (cdiv(size, _SUMMED),), y, parts, scale, size, n,
        SPLIT=parts.shape[0], BLOCK=_SUMMED, PDL=pdl, **({"launch_pdl": True} if pdl else {}),
    )  # fmt: skip
