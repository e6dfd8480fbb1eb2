"""RMSNorm's backward pass, also of a sum with a residual: a persistent program keeps its partial sum of dW in registers.

The next rows in pieces are prefetched to shared memory, and pieces leave few lanes idle.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.launching import cdiv, launch, multiprocessors, next_power_of_2, shared_memory
from tilescope_kernels._shared.operators import operator, unpack
from tilescope_kernels._shared.row_tiles import aligned, load_pieces, store_piece, vector
from tilescope_kernels._shared.weight_gradients import sum_partials, sums_dtype
from tilescope_kernels.spec import Config

#: Bytes of the shortest row, and columns of the longest: beyond, the sums for dW leave too few registers.
_LEAST, _MOST = 256, 8192
#: Most columns of rows without sums for dW, or of fewer bytes than ``_LEAST``, that share a backward program.
_SHARING = 8192
#: Bytes of the rows of ``x`` that an SM's programs work on at a time, unless one row is longer, and bytes of shared memory for
#: prefetched rows.
_SHORT, _AHEAD = 8192, 72 * 1024


@triton.jit(do_not_specialize=["rows"])
def rms_norm_backward_pieces_kernel(
    dx_ptr, partial_ptr, dy_ptr, dsum_ptr, x_ptr, weight_ptr, rstd_ptr, x_stride, rows, columns,
    LANES: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """``dx`` of rows ``program, program + programs, ...`` and a partial sum of dW.

    With n = x * rstd and g = dy * weight: dx = rstd * (g - n * mean(g * n)) + dsum and dW = sum of dy * n over rows (Zhang and Sennrich,
    arXiv:1910.07467). ``dsum``, a second gradient of x, and ``weight`` may be None. ``STAGES - 1`` rows are prefetched.
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


@triton.jit(do_not_specialize=["rows"])
def rms_norm_backward_kernel(
    dx_ptr, partial_ptr, dy_ptr, dsum_ptr, x_ptr, weight_ptr, rstd_ptr, x_stride, rows, columns,
    BLOCK: tl.constexpr, HOLD: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """As ``rms_norm_backward_pieces_kernel``, with rows in one block; ``partial`` may be None, too.

    ``HOLD`` keeps the weight in registers. Long rows leave no room for it, so it is read again from L1. ``columns`` and
    ``x_stride`` are multiples of ``VECTOR``.
    """
    x_stride = aligned(x_stride, VECTOR)
    columns = aligned(columns, VECTOR)
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    if partial_ptr is not None:
        dw = tl.zeros((BLOCK,), tl.float32)
    if weight_ptr is not None and HOLD:
        weight = tl.load(weight_ptr + column, mask=mask, other=0.0, eviction_policy="evict_last")
    for row in range(program, rows, tl.num_programs(0)):
        start = row + tl.full((), 0, tl.int64)  # int64; the interpreter's loop index has no .to()
        x = tl.load(x_ptr + start * x_stride + column, mask=mask, other=0.0)
        dy = tl.load(dy_ptr + start * columns + column, mask=mask, other=0.0)
        if dsum_ptr is not None:
            dsum = tl.load(dsum_ptr + start * columns + column, mask=mask, other=0.0)
        if weight_ptr is not None and not HOLD:
            weight = tl.load(weight_ptr + column, mask=mask, other=0.0, eviction_policy="evict_last")
        rstd = tl.load(rstd_ptr + row)
        # The row stays in 16 bits across this reduction: an fp32 copy would not fit in registers beside the sums for dW.
        # So rstd is factored out of the sum, and x is converted to fp32 again below.
        g = dy.to(tl.float32)
        if weight_ptr is not None:
            g *= weight.to(tl.float32)
        inner = tl.sum(g * x.to(tl.float32), axis=0) * rstd / columns
        normed = x.to(tl.float32) * rstd
        if partial_ptr is not None:
            # Padding lanes have dy = 0 and add nothing.
            dw += dy.to(tl.float32) * normed
        g = dy.to(tl.float32)
        if weight_ptr is not None:
            g *= weight.to(tl.float32)
        dx = (g - normed * inner) * rstd
        if dsum_ptr is not None:
            dx += dsum.to(tl.float32)
        tl.store(dx_ptr + start * columns + column, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    if partial_ptr is not None:
        tl.store(partial_ptr + program.to(tl.int64) * columns + column, dw, mask=mask)


def warps(x: torch.Tensor) -> int:
    """Number of warps for a row of ``x``: 16 elements per thread, two 16-byte accesses at 16 bits, and at most 16 warps."""
    # Rows that are not 16-byte aligned are read one element at a time, each with its own address and mask.
    elements = 8 if x.shape[1] * x.element_size() % 16 else 16
    return min(16, max(1, next_power_of_2(x.shape[1]) // (32 * elements)))


def _plan(row: int, shared: int) -> tuple[int, int, int, int]:
    """Warps, programs per SM, rows prefetched, and shared memory for them in bytes. ``row`` is the bytes of a row."""
    if row > _SHORT:
        # Two programs per SM, if registers hold the sums for dW and the weight beside a row of each operand.
        return (4, 2, 2, shared) if row <= 10240 else (8, 1, 2, shared)
    # 16 bytes per thread, and a power of two of warps.
    warps = 4 if row >= 2048 else 2 if row >= 1024 else 1
    return warps, min(8, cdiv(_SHORT, row)), 3, min(_AHEAD, shared)


def _in_pieces(
    dy: torch.Tensor, dsum: torch.Tensor | None, x: torch.Tensor, weight: torch.Tensor | None, rstd: torch.Tensor, config: Config,
) -> tuple[torch.Tensor, torch.Tensor] | None:  # fmt: skip
    """dx and dW; None for rows that are too short, too long or not 16-byte aligned. ``config`` overrides the plan."""
    rows, columns = x.shape
    size = x.element_size()
    width = 16 // size
    if columns * size < _LEAST or columns > _MOST or columns % width or x.stride(0) % width:
        return None
    warps, programs, rows_ahead, room = _plan(columns * size, shared_memory(x))
    warps, programs = config.get("num_warps", warps), config.get("PROGRAMS") or programs
    step = 32 * warps * width
    steps = cdiv(columns, step)
    read = (x, dy) if dsum is None else (x, dy, dsum)
    fitting = room // (programs * steps * step * sum(tensor.element_size() for tensor in read))
    dx = x.new_empty(rows, columns)
    partial = torch.empty((1, min(rows, programs * multiprocessors(x)), columns), device=x.device)
    launch(
        rms_norm_backward_pieces_kernel, (partial.shape[1],), dx, partial, dy, dsum, x, weight, rstd, x.stride(0), rows, columns,
        LANES=step // width, WIDTH=width, STEPS=steps, WHOLE=columns % step == 0, STAGES=1 + min(rows_ahead, fitting), num_warps=warps,
    )  # fmt: skip
    return dx, sum_partials(partial, sums_dtype(x, weight))[0]


@operator(
    "rms_norm_backward",
    shards="rrrwr rp",
    fake=lambda dy, dsum, x, weight, rstd, sums, config: (
        x.new_empty(*x.shape),
        x.new_empty(x.shape[1] if sums else 0, dtype=sums_dtype(x, weight)),
    ),
)
def rms_norm_backward(
    dy: torch.Tensor, dsum: torch.Tensor | None, x: torch.Tensor, weight: torch.Tensor | None, rstd: torch.Tensor, sums: bool, config: str,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """dx, plus ``dsum`` if that is given, and, if ``sums``, dW; else an empty tensor."""
    (rows, columns), chosen = x.shape, unpack(config) or {}
    if rows and sums and (both := _in_pieces(dy, dsum, x, weight, rstd, chosen)):
        return both
    if x.numel() == 0:
        dw = torch.zeros(columns if sums else 0, dtype=sums_dtype(x, weight), device=x.device)
        return x.new_empty(rows, columns), dw
    from tilescope_kernels.norms.special_rows import SUMMED, backward_of_special_rows  # noqa: PLC0415 - few models have such rows

    none = torch.empty(0, dtype=sums_dtype(x, weight), device=x.device)
    if found := backward_of_special_rows(dy, dsum, x, weight, rstd, sums, config, short=_SHARING, centred=False):
        dx, both = found
        return dx, none if both is None else both[0]
    block = next_power_of_2(columns)
    # Rows in flight hide latency, a few wide ones or several narrow ones, but each program costs a row of partial sums.
    programs = chosen.get("PROGRAMS") or max(1, min(4, 14336 // block))
    programs = min(rows, programs * multiprocessors(x)) if sums else rows
    dx = x.new_empty(rows, columns)
    partial = torch.empty((1, programs, columns), device=x.device) if sums else None
    launch(
        rms_norm_backward_kernel, (programs,), dx, partial, dy, dsum, x, weight, rstd, x.stride(0), rows, columns,
        BLOCK=block, HOLD=block < SUMMED, VECTOR=vector(x), num_warps=chosen.get("num_warps", warps(x) if sums else 16),
    )  # fmt: skip
    return dx, none if partial is None else sum_partials(partial, sums_dtype(x, weight))[0]
