"""LayerNorm's backward pass for 16-bit rows in shared memory, where the sums for dW and dB fill the registers."""

from __future__ import annotations

import torch

from tilescope_kernels._shared.integers import cdiv, next_power_of_2
from tilescope_kernels._shared.launches import launch
from tilescope_kernels._shared.launching import capability, multiprocessors, shared_memory
from tilescope_kernels._shared.weight_gradients import sum_partials, sums_dtype
from tilescope_kernels.norms.shared_rows import norm_backward_shared_kernel

#: Rows that the kernel serves: columns above and up to, warps (three or four pieces per row), and programs per SM, whose sums take at
#: most half of its registers. Rows of a power of two up to 8192 are faster in one block.
_SERVED = ((2048, 3072, 4, 3), (4096, 6144, 8, 2), (8192, 16384, 16, 1))
#: Columns up to which each piece has its own shared memory. Wider rows are faster in a power of two of elements.
_CHUNKED = 8192
#: Rows in a program's shared memory: two of x, two of dy and the weight.
_HELD_ROWS = 5


def _plan(x: torch.Tensor, config: str, *read: torch.Tensor | None) -> tuple[int, int] | None:
    """Warps and programs per SM; None where the kernel does not apply."""
    columns = x.shape[1]
    # The compiler proves 16-byte alignment from addresses and extents that are multiples of 16.
    copied = columns % 16 == x.stride(0) % 16 == 0 and all(
        t is None or (t.element_size() == 2 and t.data_ptr() % 16 == 0) for t in (x, *read)
    )
    if config or not copied or capability(x) == 0:
        return None
    for beyond, most, warps, programs in _SERVED:
        if beyond < columns <= most:
            piece = 256 * warps
            size = cdiv(columns, piece) * piece if columns <= _CHUNKED else next_power_of_2(columns)
            return (warps, programs) if programs * _HELD_ROWS * 2 * size < shared_memory(x) else None
    return None


def backward_in_shared_memory(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, stats: torch.Tensor, config: str
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """dx, and dW and dB as rows of one tensor; None for other rows, and where a ``config`` selects the norm's own kernel."""
    plan = _plan(x, config, dy, weight)
    if plan is None:
        return None
    (rows, columns), (warps, programs) = x.shape, plan
    dx = x.new_empty(rows, columns)
    partial = torch.empty((2, min(rows, programs * multiprocessors(x)), columns), device=x.device)
    piece = 256 * warps
    launch(
        norm_backward_shared_kernel, (partial.shape[1],),
        dx, partial, dy, x, weight, stats, x.stride(0), columns, rows, columns,
        PIECE=piece, PIECES=cdiv(columns, piece), CHUNK=piece if columns <= _CHUNKED else next_power_of_2(columns),
        WHOLE=columns % piece == 0, CENTRED=True, SKEWED=False, num_warps=warps,
    )  # fmt: skip
    return dx, sum_partials(partial, sums_dtype(x, weight))
