"""Backward pass of rows that need another kernel than the norm's own: short, unaligned, and very long rows."""

from __future__ import annotations

import torch

from tilescope_kernels._shared.integers import next_power_of_2
from tilescope_kernels.norms.short_rows_backward import backward_of_short_rows, serves_short_rows
from tilescope_kernels.norms.unaligned_rows import backward_unaligned, serves_unaligned
from tilescope_kernels.norms.wide_rows import backward_in_parts

#: Most columns of one program, whose fp32 sums for dW then take a quarter of an SM's registers.
SUMMED = 16384


def backward_of_special_rows(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, stats: torch.Tensor, sums: bool, config: str,
    *, short: int, centred: bool,
) -> tuple[torch.Tensor, torch.Tensor | None] | None:  # fmt: skip
    """dx and, if ``sums``, dW and (if ``centred``) dB as rows of one tensor; None for rows of the norm's own kernel.

    ``short``: most columns of rows that share a program. A ``config`` selects the norm's own kernel, except for rows that are
    too long for it.
    """
    if not config and serves_short_rows(x, short):
        return backward_of_short_rows(dy, x, weight, stats, sums, centred=centred)
    if not config and sums and serves_unaligned(x, dy, centred=centred, backward=True):
        return backward_unaligned(dy, x, weight, stats, centred=centred)
    if next_power_of_2(x.shape[1]) > SUMMED:
        return backward_in_parts(dy, None, x, weight, stats, sums, centred=centred)
    return None
