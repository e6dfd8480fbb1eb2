"""The last step of a weight gradient: the sum of what each program of a persistent grid has added up."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tilescope_kernels._launch import device_of


@triton.jit
def sum_partials_kernel(out_ptr, partial_ptr, programs, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """``out[i, c] = sum over p of partial[i, p, c]``, with i the grid's second axis. Always in the same order."""
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


def sum_partials(partial: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Sums fp32 ``partial`` (outputs, programs, columns) over its programs: (outputs, columns) in ``dtype``."""
    outputs, programs, columns = partial.shape
    out = torch.empty((outputs, columns), dtype=dtype, device=partial.device)
    # Narrow blocks, because a few thousand columns must occupy every multiprocessor; 32 fp32 columns fill a cache line.
    block = 32
    # All programs' rows in flight at once, where they fit the registers: what is added up is short, its latency is not.
    rows = min(512, triton.next_power_of_2(programs))
    with device_of(partial):
        sum_partials_kernel[(triton.cdiv(columns, block), outputs)](
            out, partial, programs, columns, ROWS=rows, BLOCK=block, num_warps=8
        )
    return out
