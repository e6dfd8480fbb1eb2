"""Weight gradients without atomics: each program of a persistent grid stores a partial sum, and a second kernel adds them.

The order of additions is fixed, so gradients are deterministic.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.launching import BEYOND, cdiv, launch, next_power_of_2


@triton.jit(do_not_specialize=["programs"])
def sum_partials_kernel(out_ptr, partial_ptr, programs, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """``out[i, c] = sum over p of partial[i, p, c]``, with i the grid's second axis."""
    which = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    row = tl.arange(0, ROWS)[:, None]
    partial_ptr += which * programs * columns
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, programs, ROWS):
        mask = (start + row < programs) & (column < columns)
        total += tl.load(partial_ptr + (start + row) * columns + column, mask=mask, other=0.0)
    out = tl.sum(total, axis=0, keep_dims=True)
    tl.store(out_ptr + which * columns + column, out.to(out_ptr.dtype.element_ty), mask=column < columns)


def sums_dtype(x: torch.Tensor, weight: torch.Tensor | None) -> torch.dtype:
    """The dtype of a norm's weight gradients: that of the weight, or of ``x`` without a weight."""
    return x.dtype if weight is None else weight.dtype


def sum_partials(partial: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The sum over programs of fp32 ``partial`` (outputs, programs, columns), as (outputs, columns) in ``dtype``."""
    outputs, programs, columns = partial.shape
    if programs > 1 and columns < BEYOND < programs * columns:
        # The kernel's offsets into an output's partial sums are int32.
        parts = partial.split(BEYOND // columns, 1)
        return sum_partials(torch.stack([sum_partials(part.contiguous(), torch.float32) for part in parts], 1), dtype)
    out = torch.empty((outputs, columns), dtype=dtype, device=partial.device)
    # Narrow blocks, so that a few thousand columns occupy every SM; 32 fp32 columns fill a cache line. Small programs,
    # several per SM, because latency dominates.
    block, rows, warps = 32, 64, 4
    if programs > 256:
        # Load up to 1024 partial sums at once: faster than fewer.
        block, rows = 16, min(1024, next_power_of_2(programs))
        warps = rows // 128
    elif columns > 16384:  # enough columns to fill the GPU, and few programs, as each has a part of a row
        block, rows = 128, min(64, next_power_of_2(programs))
    launch(
        sum_partials_kernel, (cdiv(columns, block), outputs),
        out, partial, programs, columns,
        ROWS=rows, BLOCK=block, num_warps=warps,
    )  # fmt: skip
    return out
