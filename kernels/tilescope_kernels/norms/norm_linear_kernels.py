"""Triton kernels of ``layer_norm_linear`` and ``rms_norm_gelu_linear``."""

from __future__ import annotations

import triton
import triton.language as tl

from tilescope_kernels._shared.activations import activate, activate_with_derivative
from tilescope_kernels._shared.tile_order import tile_origin


@triton.jit
def norm_linear_prepare_kernel(
    mean_ptr, rstd_ptr, folded_ptr, sums_ptr, shift_ptr, x_ptr, w_ptr, norm_weight_ptr, norm_bias_ptr, bias_ptr,
    x_stride, w_stride, rows, columns, eps, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row per program. Rows of x come first and give mean and 1 / standard deviation; then come rows of W.

    A row of W gives ``folded = W * g``, rounded, the sum of that, and ``shift = W @ b + bias``.
    """
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    if row < rows:
        x = tl.load(x_ptr + row.to(tl.int64) * x_stride + column, mask=mask, other=0.0).to(tl.float32)
        mean = tl.sum(x) / columns
        centred = tl.where(mask, x - mean, 0.0)
        tl.store(mean_ptr + row, mean)
        tl.store(rstd_ptr + row, tl.rsqrt(tl.sum(centred * centred) / columns + eps))
    else:
        row -= rows
        w = tl.load(w_ptr + row.to(tl.int64) * w_stride + column, mask=mask, other=0.0).to(tl.float32)
        folded = w
        if norm_weight_ptr is not None:
            folded = w * tl.load(norm_weight_ptr + column, mask=mask, other=0.0).to(tl.float32)
        folded = folded.to(folded_ptr.dtype.element_ty)
        tl.store(folded_ptr + row.to(tl.int64) * columns + column, folded, mask=mask)
        tl.store(sums_ptr + row, tl.sum(folded.to(tl.float32)))
        shift = 0.0
        if norm_bias_ptr is not None:
            shift += tl.sum(w * tl.load(norm_bias_ptr + column, mask=mask, other=0.0).to(tl.float32))
        if bias_ptr is not None:
            shift += tl.load(bias_ptr + row).to(tl.float32)
        tl.store(shift_ptr + row, shift)


@triton.jit
def _corrected(
    total, mean_ptr, rstd_ptr, sums_ptr, shift_ptr, M, N, start_m, start_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """``rstd * (total - mean * sums) + shift``."""
    m = start_m + tl.arange(0, BLOCK_M)
    n = start_n + tl.arange(0, BLOCK_N)
    mean = tl.load(mean_ptr + m, mask=m < M, other=0.0)[:, None]
    rstd = tl.load(rstd_ptr + m, mask=m < M, other=0.0)[:, None]
    sums = tl.load(sums_ptr + n, mask=n < N, other=0.0)[None, :]
    shift = tl.load(shift_ptr + n, mask=n < N, other=0.0)[None, :]
    return rstd * (total - mean * sums) + shift


@triton.jit
def norm_linear_kernel(
    y_ptr, x_ptr, w_ptr, y_tiles, x_tiles, w_tiles, mean_ptr, rstd_ptr, sums_ptr, shift_ptr, M, N, K, x_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, EVEN_K: tl.constexpr,
    FAR: tl.constexpr,
):  # fmt: skip
    """x (M, K) times w (N, K) transposed, with LayerNorm's correction as epilogue.

    Persistent through TMA descriptors, or one tile per program through pointers where those are None. ``EVEN_K``: K is a
    multiple of ``BLOCK_K``. ``FAR``: rows of x or y lie so far apart that offsets within a tile need int64.
    """
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    if x_tiles is not None:
        # Flattened loops are pipelined as one: the next tile's loads overlap this tile's epilogue.
        for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
            start_m, start_n = tile_origin(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
            total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for step in range(0, tl.cdiv(K, BLOCK_K)):
                x = x_tiles.load([start_m, step * BLOCK_K])
                w = w_tiles.load([start_n, step * BLOCK_K])
                total = tl.dot(x, w.T, total)
            y = _corrected(total, mean_ptr, rstd_ptr, sums_ptr, shift_ptr, M, N, start_m, start_n, BLOCK_M, BLOCK_N)
            y_tiles.store([start_m, start_n], y.to(y_ptr.dtype.element_ty))
    else:
        start_m, start_n = tile_origin(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m = tl.arange(0, BLOCK_M)[:, None]
        n = tl.arange(0, BLOCK_N)[None, :]
        k = tl.arange(0, BLOCK_K)
        # Only a tile's origin needs int64; offsets within a tile are int32, unless its rows lie far apart.
        if FAR:
            m = m.to(tl.int64)
        x_rows = x_ptr + start_m.to(tl.int64) * x_stride + m * x_stride + k[None, :]
        w_rows = w_ptr + start_n.to(tl.int64) * K + n * K + k[:, None]
        valid_m = start_m + m < M
        valid_n = start_n + n < N
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for start_k in range(0, K, BLOCK_K):
            if EVEN_K:
                x = tl.load(x_rows + start_k, mask=valid_m, other=0.0)
                w = tl.load(w_rows + start_k, mask=valid_n, other=0.0)
            else:
                x = tl.load(x_rows + start_k, mask=valid_m & (k[None, :] < K - start_k), other=0.0)
                w = tl.load(w_rows + start_k, mask=valid_n & (k[:, None] < K - start_k), other=0.0)
            # "ieee": fp32 operands are multiplied as fp32, not rounded to tf32.
            total = tl.dot(x, w, total, input_precision="ieee")
        y = _corrected(total, mean_ptr, rstd_ptr, sums_ptr, shift_ptr, M, N, start_m, start_n, BLOCK_M, BLOCK_N)
        y_tile = y_ptr + start_m.to(tl.int64) * N + start_n + m * N + n
        tl.store(y_tile, y.to(y_ptr.dtype.element_ty), mask=valid_m & valid_n)


@triton.jit
def normed_rows_kernel(
    y_ptr, x_ptr, norm_weight_ptr, norm_bias_ptr, x_stride, columns, eps, RMS_GELU: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """``layer_norm(x)`` or, with ``RMS_GELU``, ``gelu(rms_norm(x))``. One row per program, read once."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    if not RMS_GELU:
        x = tl.where(mask, x - tl.sum(x) / columns, 0.0)
    y = x * tl.rsqrt(tl.sum(x * x) / columns + eps)
    # Every row reads the norm's parameters again, so they should stay in cache.
    if norm_weight_ptr is not None:
        y *= tl.load(norm_weight_ptr + column, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
    if norm_bias_ptr is not None:
        y += tl.load(norm_bias_ptr + column, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
    if RMS_GELU:
        y = activate(y, 1)
    tl.store(y_ptr + row * columns + column, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def rms_norm_gelu_backward_kernel(
    dx_ptr, partial_ptr, dy_ptr, x_ptr, norm_weight_ptr, x_stride, rows, columns, eps, BLOCK: tl.constexpr
):
    """``dx`` of gelu(rms_norm(x)) for rows ``program, program + programs, ...``, and their share of the weight's gradient.

    With n = x * rstd, d = dy * gelu'(n * weight) and g = d * weight: dx = rstd * (g - n * mean(g * n)), and the weight's
    gradient is the sum of d * n over rows. 1 / RMS is recomputed, which needs no further read of x.
    """
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    weight = 1.0
    if norm_weight_ptr is not None:
        weight = tl.load(norm_weight_ptr + column, mask=mask, other=0.0)
    dw = tl.zeros((BLOCK,), tl.float32)
    for row in range(program, rows, tl.num_programs(0)):
        start = row + tl.full((), 0, tl.int64)  # int64; the interpreter's loop index has no .to()
        x = tl.load(x_ptr + start * x_stride + column, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + start * columns + column, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(x * x) / columns + eps)
        normed = x * rstd
        gain = weight if norm_weight_ptr is None else weight.to(tl.float32)
        _, slope = activate_with_derivative(normed * gain, 1)
        g = dy * slope
        dw += g * normed
        g *= gain
        dx = (g - normed * (tl.sum(g * normed) / columns)) * rstd
        tl.store(dx_ptr + start * columns + column, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    if partial_ptr is not None:
        tl.store(partial_ptr + program.to(tl.int64) * columns + column, dw, mask=mask)
