"""One tile of the result a program; K in steps, accumulated in fp32."""

import torch
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(out_ptr, a_ptr, b_ptr, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    inner = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        down, across = start + inner[:, None], start + inner[None, :]
        a = tl.load(a_ptr + row * k + across, mask=(row < m) & (across < k), other=0.0)
        b = tl.load(b_ptr + down * n + column, mask=(down < k) & (column < n), other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    tl.store(out_ptr + row * n + column, total.to(out_ptr.dtype.element_ty), mask=(row < m) & (column < n))


def matmul(a, b):
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty((m, n), dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(m, 32), triton.cdiv(n, 32))
    matmul_kernel[grid](out, a, b, m, n, k, BLOCK_M=32, BLOCK_N=32, BLOCK_K=32)
    return out
