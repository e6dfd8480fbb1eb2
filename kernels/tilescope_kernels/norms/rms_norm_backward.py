"""RMSNorm's backward pass for rows in pieces: a persistent program keeps its partial sum of dW in registers.

The next rows are prefetched to shared memory, and pieces leave few lanes idle. Both bring the kernel close to the time of an addition
of two such tensors.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.integers import cdiv
from tilescope_kernels._shared.launches import launch
from tilescope_kernels._shared.launching import multiprocessors, shared_memory, split_config
from tilescope_kernels._shared.row_tiles import aligned, load_pieces, store_piece
from tilescope_kernels._shared.weight_gradients import sum_partials, sums_dtype

#: Bytes of the shortest row, and columns of the longest: beyond, the sums for dW leave too few registers.
_LEAST, _MOST = 256, 8192
#: Bytes of the rows of ``x`` that an SM's programs work on at a time, unless one row is longer, and bytes of shared memory for
#: prefetched rows.
_SHORT, _AHEAD = 8192, 72 * 1024


@triton.jit(do_not_specialize=["rows"])
def rms_norm_backward_pieces_kernel(
    dx_ptr, partial_ptr, dy_ptr, dsum_ptr, x_ptr, weight_ptr, rstd_ptr, x_stride, rows, columns,
    LANES: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """``dx`` of rows ``program, program + programs, ...`` and a partial sum of dW.

    With n = x * rstd and g = dy * weight: dx = rstd * (g - n * mean(g * n)) + dsum and dW = sum of dy * n over rows (Zhang
    and Sennrich, arXiv:1910.07467). ``dsum``, a second gradient of x, and ``weight`` may be None. ``STAGES - 1`` rows are
    prefetched.
    """
    program = tl.program_id(0)
    dw = ()
    for _ in tl.static_range(STEPS):
        dw += (tl.zeros((LANES, WIDTH), tl.float32),)
    if weight_ptr is not None:
        weight = load_pieces(weight_ptr, columns, 0.0, LANES, WIDTH, STEPS, WHOLE, KEEP=True)
    for row in tl.range(program, rows, tl.num_programs(0), num_stages=STAGES):
        start = row + tl.full((), 0, tl.int64)  # int64; the interpreter's loop index has no .to()
        own = start * aligned(columns, WIDTH)
        x = load_pieces(x_ptr + start * aligned(x_stride, WIDTH), columns, 0.0, LANES, WIDTH, STEPS, WHOLE)
        dy = load_pieces(dy_ptr + own, columns, 0.0, LANES, WIDTH, STEPS, WHOLE)
        if dsum_ptr is not None:
            dsum = load_pieces(dsum_ptr + own, columns, 0.0, LANES, WIDTH, STEPS, WHOLE)
        rstd = tl.load(rstd_ptr + row)
        products = tl.zeros((LANES,), tl.float32)
        for i in tl.static_range(STEPS):
            g = dy[i].to(tl.float32)
            if weight_ptr is not None:
                g *= weight[i].to(tl.float32)
            products += tl.sum(g * x[i].to(tl.float32), axis=1)
        inner = tl.sum(products, axis=0) * rstd / columns
        more = ()
        for i in tl.static_range(STEPS):
            g = dy[i].to(tl.float32)
            normed = x[i].to(tl.float32) * rstd
            # Padding lanes have dy = 0 and add nothing.
            more += (dw[i] + g * normed,)
            if weight_ptr is not None:
                g *= weight[i].to(tl.float32)
            dx = (g - normed * inner) * rstd
            if dsum_ptr is not None:
                dx += dsum[i].to(tl.float32)
            store_piece(dx_ptr + own, dx, columns, i, LANES, WIDTH, STEPS, WHOLE)
        dw = more
    partial_ptr += program.to(tl.int64) * aligned(columns, WIDTH)
    for i in tl.static_range(STEPS):
        store_piece(partial_ptr, dw[i], columns, i, LANES, WIDTH, STEPS, WHOLE)


def _plan(row: int, shared: int) -> tuple[int, int, int, int]:
    """Warps, programs per SM, rows prefetched, and shared memory for them in bytes. ``row`` is the bytes of a row."""
    if row > _SHORT:
        # Two programs per SM, if registers hold the sums for dW and the weight beside a row of each operand.
        return (4, 2, 2, shared) if row <= 10240 else (8, 1, 2, shared)
    # 16 bytes per thread, and a power of two of warps.
    warps = 4 if row >= 2048 else 2 if row >= 1024 else 1
    return warps, min(8, cdiv(_SHORT, row)), 3, min(_AHEAD, shared)


def backward_in_pieces(
    dy: torch.Tensor, dsum: torch.Tensor | None, x: torch.Tensor, weight: torch.Tensor | None, rstd: torch.Tensor,
    config: Mapping[str, int],
) -> tuple[torch.Tensor, torch.Tensor] | None:  # fmt: skip
    """dx and dW; None for rows that are too short, too long or not 16-byte aligned. ``config`` overrides the plan."""
    rows, columns = x.shape
    size = x.element_size()
    width = 16 // size
    if columns * size < _LEAST or columns > _MOST or columns % width or x.stride(0) % width:
        return None
    chosen, options = split_config(config)
    warps, programs, rows_ahead, room = _plan(columns * size, shared_memory(x))
    options.setdefault("num_warps", warps)
    programs = chosen.get("PROGRAMS") or programs
    step = 32 * options["num_warps"] * width
    steps = cdiv(columns, step)
    read = (x, dy) if dsum is None else (x, dy, dsum)
    fitting = room // (programs * steps * step * sum(tensor.element_size() for tensor in read))
    dx = x.new_empty(rows, columns)
    partial = torch.empty((1, min(rows, programs * multiprocessors(x)), columns), device=x.device)
    launch(
        rms_norm_backward_pieces_kernel, (partial.shape[1],),
        dx, partial, dy, dsum, x, weight, rstd, x.stride(0), rows, columns,
        LANES=step // width, WIDTH=width, STEPS=steps, WHOLE=columns % step == 0, STAGES=1 + min(rows_ahead, fitting),
        **options,
    )  # fmt: skip
    return dx, sum_partials(partial, sums_dtype(x, weight))[0]
