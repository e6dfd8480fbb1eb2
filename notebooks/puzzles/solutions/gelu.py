"""Everything between the load and the store is free of traffic."""

import torch
import triton
import triton.language as tl


@triton.jit
def gelu_kernel(out_ptr, x_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    # 0.5 * (1 + tanh(u)) is the logistic function of 2u; 0.7978845608 is sqrt(2 / pi).
    u = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    tl.store(out_ptr + offsets, x * tl.sigmoid(2.0 * u), mask=mask)


def gelu(x, approximate):
    out = torch.empty_like(x)
    n = out.numel()
    gelu_kernel[(triton.cdiv(n, 1024),)](out, x, n, BLOCK=1024)
    return out
