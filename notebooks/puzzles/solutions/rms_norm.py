"""One row a program; no mean to remove, so one sum is enough."""

import torch
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(out_ptr, x_ptr, weight_ptr, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    x = tl.load(x_ptr + row * columns + column, mask=mask, other=0.0)
    scale = tl.sqrt(tl.sum(x * x, axis=0) / columns + eps)
    weight = tl.load(weight_ptr + column, mask=mask)
    tl.store(out_ptr + row * columns + column, x / scale * weight, mask=mask)


def rms_norm(x, weight, eps):
    out = torch.empty_like(x)
    rows, columns = x.shape
    rms_norm_kernel[(rows,)](out, x, weight, columns, eps, BLOCK=triton.next_power_of_2(columns))
    return out
