"""Triton kernels of ``lora_linear``: the update's first product, and the layer's with the update at the end of its sum."""

from __future__ import annotations

import triton
import triton.language as tl

from tilescope_kernels._shared.tile_order import tile_origin
from tilescope_kernels.matrix_products.scaled_matmul import pointer_operands


@triton.jit
def lora_down_kernel(
    down_ptr, x_ptr, a_ptr, alpha, M, K, R, x_stride, a_stride,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, RANK: tl.constexpr, EVEN_K: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """Compute ``alpha * x @ A.T`` (M, R) of BLOCK_M rows per program."""
    start_m = tl.program_id(0) * BLOCK_M
    down = tl.zeros((BLOCK_M, RANK), tl.float32)
    for start_k in range(0, K, BLOCK_K):
        x, a = pointer_operands(
            x_ptr, a_ptr, M, R, K, x_stride, a_stride, start_m, 0 * start_m, start_k, BLOCK_M, RANK, BLOCK_K, EVEN_K, FAR,
        )  # fmt: skip
        down = tl.dot(x, a, down, input_precision="ieee")
    m = start_m + tl.arange(0, BLOCK_M)[:, None]
    r = tl.arange(0, RANK)[None, :]
    tl.store(down_ptr + m * R + r, (alpha * down).to(down_ptr.dtype.element_ty), mask=(m < M) & (r < R))


@triton.jit
def lora_linear_kernel(
    y_ptr, x_ptr, weight_ptr, a_ptr, b_ptr, down_ptr, alpha, M, N, K, R,
    x_stride, weight_stride, a_stride, b_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, RANK: tl.constexpr,
    TMA: tl.constexpr, HALVES: tl.constexpr, INLINE: tl.constexpr, EVEN_K: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """Compute tiles ``program, program + programs, ...`` through tensor descriptors (``TMA``), or a tile per program.

    ``down_ptr`` holds the result of ``lora_down_kernel``, unless ``INLINE``. ``RANK`` is R padded to a size that ``tl.dot``
    takes. ``HALVES``: a tile is stored in two halves, which needs half the shared memory. ``FAR``: offsets within a tile need int64.
    """
    if TMA:
        x_tiles = tl.make_tensor_descriptor(x_ptr, [M, K], [x_stride, 1], [BLOCK_M, BLOCK_K])
        weight_tiles = tl.make_tensor_descriptor(weight_ptr, [N, K], [weight_stride, 1], [BLOCK_N, BLOCK_K])
        a_tiles = tl.make_tensor_descriptor(a_ptr, [R, K], [a_stride, 1], [RANK, BLOCK_K])
        b_tiles = tl.make_tensor_descriptor(b_ptr, [N, R], [b_stride, 1], [BLOCK_N, RANK])
        y_tiles = tl.make_tensor_descriptor(y_ptr, [M, N], [N, 1], [BLOCK_M, BLOCK_N // (1 + HALVES)])
        if not INLINE:
            down_tiles = tl.make_tensor_descriptor(down_ptr, [M, R], [R, 1], [BLOCK_M, RANK])
        tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
        for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=INLINE == 0):
            start_m, start_n = tile_origin(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
            total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            low = tl.zeros((BLOCK_M, RANK), tl.float32)
            for step in range(0, tl.cdiv(K, BLOCK_K)):
                x = x_tiles.load([start_m, step * BLOCK_K])
                weight = weight_tiles.load([start_n, step * BLOCK_K])
                total = tl.dot(x, weight.T, total)
                if INLINE:
                    low = tl.dot(x, a_tiles.load([0, step * BLOCK_K]).T, low)
            down = (alpha * low).to(y_ptr.dtype.element_ty) if INLINE else down_tiles.load([start_m, 0])
            total = tl.dot(down, b_tiles.load([start_n, 0]).T, total)
            if HALVES:
                left, right = total.reshape(BLOCK_M, 2, BLOCK_N // 2).permute(0, 2, 1).split()
                y_tiles.store([start_m, start_n], left.to(y_ptr.dtype.element_ty))
                y_tiles.store([start_m, start_n + BLOCK_N // 2], right.to(y_ptr.dtype.element_ty))
            else:
                y_tiles.store([start_m, start_n], total.to(y_ptr.dtype.element_ty))
    else:
        start_m, start_n = tile_origin(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        low = tl.zeros((BLOCK_M, RANK), tl.float32)
        m = start_m + tl.arange(0, BLOCK_M)[:, None]
        n = start_n + tl.arange(0, BLOCK_N)[None, :]
        r = tl.arange(0, RANK)
        of_a = r.to(tl.int64) if FAR else r
        for start_k in range(0, K, BLOCK_K):
            x, weight = pointer_operands(
                x_ptr, weight_ptr, M, N, K, x_stride, weight_stride, start_m, start_n, start_k,
                BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, FAR,
            )  # fmt: skip
            total = tl.dot(x, weight, total, input_precision="ieee")
            if INLINE:
                k = start_k + tl.arange(0, BLOCK_K)[:, None]
                valid = (r[None, :] < R) & (k < K)
                a = tl.load(a_ptr + of_a[None, :] * a_stride + k, mask=valid, other=0.0)
                low = tl.dot(x, a, low, input_precision="ieee")
        if INLINE:
            down = (alpha * low).to(y_ptr.dtype.element_ty)
        else:
            down = tl.load(down_ptr + m * R + r[None, :], mask=(m < M) & (r[None, :] < R), other=0.0)
        b = tl.load(b_ptr + n * b_stride + r[:, None], mask=(n < N) & (r[:, None] < R), other=0.0)
        total = tl.dot(down, b, total, input_precision="ieee")
        tl.store(y_ptr + m.to(tl.int64) * N + n, total.to(y_ptr.dtype.element_ty), mask=(m < M) & (n < N))
