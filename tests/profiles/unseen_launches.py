"""Kernels that do what others' did which were captured and had not been seen before. Nothing here is declared to Tilescope."""

import torch
import triton
import triton.language as tl
from triton.language import core

#: A function of Triton's own that a person has wrapped, as libraries do for several versions of Triton.
integer_of = triton.constexpr_function(core.get_int_dtype)


@triton.jit
def bits_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    kind: tl.constexpr = integer_of(x.dtype.primitive_bitwidth, True)
    tl.store(out_ptr + at, x.to(kind, bitcast=True))


def bits(x):
    out = torch.empty(x.shape, dtype=torch.int32, device=x.device)
    bits_kernel[(1,)](x, out, BLOCK=x.numel())
    return out


@triton.jit
def copy_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at))


@triton.jit
def endless_kernel(out_ptr):
    turns = 1
    while turns > 0:
        turns = turns * 3 % 7
    tl.store(out_ptr, turns)


@triton.jit
def chosen_kernel(x_ptr, index_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + tl.load(index_ptr + at)))


@triton.jit
def appended_kernel(x_ptr, count_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + tl.atomic_add(count_ptr, BLOCK) + at, tl.load(x_ptr + at))


@triton.jit
def scattered_kernel(x_ptr, index_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + tl.load(index_ptr + at), tl.load(x_ptr + at))


@triton.jit
def every_kth_kernel(x_ptr, k_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at // tl.load(k_ptr)))


@triton.jit
def overwritten_kernel(x_ptr, k_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at) + tl.program_id(0))


@triton.jit
def every_other_kernel(x_ptr, out_ptr, mask, BLOCK: tl.constexpr):
    number = tl.arange(0, BLOCK) + 1
    at = tl.inline_asm_elementwise(
        "fns.b32 $0, $1, 0, $2;", "=r,r,r", [mask, number], dtype=tl.int32, is_pure=True, pack=1
    )
    x = tl.load(x_ptr + at)
    y = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(out_ptr + at, y)
