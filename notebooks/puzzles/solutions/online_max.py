"""One pass over the row: the sum is rescaled whenever the maximum rises (Milakov and Gimelshein, arXiv:1805.02867)."""

import torch
import triton
import triton.language as tl


@triton.jit
def online_max_kernel(max_ptr, lse_ptr, x_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    maximum = tl.full((), -float("inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * columns + column, mask=column < columns, other=-float("inf"))
        higher = tl.maximum(maximum, tl.max(x, axis=0))
        total = total * tl.exp(maximum - higher) + tl.sum(tl.exp(x - higher), axis=0)
        maximum = higher
    tl.store(max_ptr + row, maximum)
    tl.store(lse_ptr + row, maximum + tl.log(total))


def online_max(x):
    rows, columns = x.shape
    maximum, lse = (torch.empty(rows, dtype=x.dtype, device=x.device) for _ in range(2))
    online_max_kernel[(rows,)](maximum, lse, x, columns, BLOCK=1024)
    return maximum, lse
