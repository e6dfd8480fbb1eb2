"""The norms' gradients for rows that need another kernel than the norm's own: short rows, and very long ones (``long_rows``).

The latency of each short row's loads would be exposed, so a program works on many at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.launching import cdiv, launch, multiprocessors, next_power_of_2
from tilescope_kernels._shared.row_tiles import aligned, vector
from tilescope_kernels._shared.weight_gradients import sum_partials, sums_dtype

#: Most columns of one program, whose fp32 sums for dW then take a quarter of an SM's registers.
SUMMED = 16384
#: Most columns of rows that are not 16-byte aligned.
_MOST_UNALIGNED = 512
#: Elements of a tile, programs per SM, warps, and pipeline stages.
_PLAN = (2048, 4, 4, 3)


@triton.jit(do_not_specialize=["rows"])
def norm_short_rows_backward_kernel(
    dx_ptr, partial_ptr, dy_ptr, x_ptr, weight_ptr, stats_ptr, x_stride, rows, columns,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, VECTOR: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    """``dx`` of every ``programs``-th tile of ``ROWS`` rows and, unless ``partial`` is None, their share of dW and dB.

    ``CENTRED`` is for LayerNorm, whose ``stats`` are each row's mean and 1 / standard deviation. RMSNorm has 1 / RMS and no
    dB. With n = (x - mean) * rstd and g = dy * weight: dx = rstd * (g - mean(g) - n * mean(g * n)), dW = sum of dy * n and
    dB = sum of dy over rows. ``weight`` may be None. ``columns`` and ``x_stride`` are multiples of ``VECTOR``.
    """
    x_stride = aligned(x_stride, VECTOR)
    columns = aligned(columns, VECTOR)
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)[None, :]
    inside = column < columns
    dw = tl.zeros((ROWS, BLOCK), tl.float32)
    db = tl.zeros((ROWS, BLOCK), tl.float32)
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    for tile in tl.range(program, tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = tile * ROWS + tl.arange(0, ROWS)[:, None]
        start = row.to(tl.int64)
        exists = row < rows
        mask = exists & inside
        # Padding lanes have dy = 0 and add nothing.
        x = tl.load(x_ptr + start * x_stride + column, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + start * columns + column, mask=mask, other=0.0).to(tl.float32)
        if CENTRED:
            x -= tl.load(stats_ptr + 2 * start, mask=exists, other=0.0)
            rstd = tl.load(stats_ptr + 2 * start + 1, mask=exists, other=0.0)
        else:
            rstd = tl.load(stats_ptr + start, mask=exists, other=0.0)
        normed = x * rstd
        g = dy
        if weight_ptr is not None:
            g *= weight
        dx = g - normed * (tl.sum(g * normed, axis=1, keep_dims=True) / columns)
        if CENTRED:
            dx -= tl.sum(g, axis=1, keep_dims=True) / columns
            db += dy
        dw += dy * normed
        tl.store(dx_ptr + start * columns + column, (dx * rstd).to(dx_ptr.dtype.element_ty), mask=mask)
    if partial_ptr is not None:
        place = program.to(tl.int64) * columns + tl.arange(0, BLOCK)
        valid = tl.arange(0, BLOCK) < columns
        tl.store(partial_ptr + place, tl.sum(dw, axis=0), mask=valid)
        if CENTRED:
            tl.store(partial_ptr + tl.num_programs(0).to(tl.int64) * columns + place, tl.sum(db, axis=0), mask=valid)


def _serves_short_rows(x: torch.Tensor, most: int) -> bool:
    """Whether rows of ``x`` should share a program. 16-byte aligned rows should up to ``most`` columns."""
    whole = x.shape[1] * x.element_size() % 16 == x.stride(0) * x.element_size() % 16 == 0
    return x.shape[1] <= (most if whole else _MOST_UNALIGNED)


def _backward_of_short_rows(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, stats: torch.Tensor, sums: bool, centred: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """dx and, if ``sums``, dW and (if ``centred``) dB as rows of one tensor."""
    rows, columns = x.shape
    elements, programs, warps, stages = _PLAN
    block = next_power_of_2(columns)
    tile = max(1, min(elements // block, next_power_of_2(rows)))
    programs = min(cdiv(rows, tile), programs * multiprocessors(x))
    dx = x.new_empty(rows, columns)
    partial = x.new_empty((1 + centred, programs, columns), dtype=torch.float32) if sums else None
    launch(
        norm_short_rows_backward_kernel, (programs,), dx, partial, dy, x, weight, stats, x.stride(0), rows, columns,
        ROWS=tile, BLOCK=block, STAGES=stages, VECTOR=vector(x), CENTRED=centred, num_warps=warps,
    )  # fmt: skip
    return dx, None if partial is None else sum_partials(partial, sums_dtype(x, weight))


def backward_of_special_rows(
    dy: torch.Tensor, dsum: torch.Tensor | None, x: torch.Tensor, weight: torch.Tensor | None, stats: torch.Tensor,
    sums: bool, config: str, *, short: int, centred: bool,
) -> tuple[torch.Tensor, torch.Tensor | None] | None:  # fmt: skip
    """dx and, if ``sums``, dW and (if ``centred``) dB as rows of one tensor; None for rows of the norm's own kernel.

    ``short``: most columns of rows that share a program. A ``config`` selects the norm's own kernel, except for rows that are
    too long for it.
    """
    if not config and dsum is None and _serves_short_rows(x, short):
        return _backward_of_short_rows(dy, x, weight, stats, sums, centred=centred)
    if next_power_of_2(x.shape[1]) > SUMMED:
        from tilescope_kernels.norms import long_rows  # noqa: PLC0415 - few models have such rows

        return long_rows.backward_in_parts(dy, dsum, x, weight, stats, sums, centred=centred)
    return None
