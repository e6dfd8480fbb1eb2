"""Numbers that are known when a kernel is compiled, and Python's own operators and statements."""

# ruff: noqa: PLR0917

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language import cdiv as how_many
from triton.language import minimum
from triton.language.math import rsqrt

from ..interpreting import Launched

N = 64
SCALE: tl.constexpr = tl.constexpr(2.5)


@triton.jit
def float_argument_kernel(x_ptr, out_ptr, eps, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(out_ptr + tl.arange(0, N), x + eps.to(x.dtype))


def a_float_argument_has_to() -> Launched:
    x, out = torch.randn(N).bfloat16(), torch.empty(N, dtype=torch.bfloat16)
    float_argument_kernel[(1,)](x, out, 0.1, N)
    return Launched(out, x + torch.tensor(0.1).bfloat16(), x, flops=N)


@triton.jit
def constant_arithmetic_kernel(x_ptr, out_ptr, FACTOR: tl.constexpr, N: tl.constexpr):
    half: tl.constexpr = N // 2
    third: tl.constexpr = FACTOR * 2.0 - 1.0
    local = FACTOR + SCALE
    first = tl.arange(0, half)
    second = tl.arange(half, N)
    tl.static_assert(N % 2 == 0)
    tl.store(out_ptr + first, tl.load(x_ptr + first) * third)
    tl.store(out_ptr + second, tl.load(x_ptr + second) * local.to(tl.float32) + N.value)


def constant_arithmetic() -> Launched:
    x, out = torch.randn(N), torch.empty(N)
    constant_arithmetic_kernel[(1,)](x, out, 1.5, N)
    return Launched(out, torch.cat([x[:32] * 2, x[32:] * 4 + N]), x, flops=32 + 64)


@triton.jit
def tuple_kernel(x_ptr, out_ptr, N: tl.constexpr):
    total, least = 0.0, float("inf")
    for i in range(N):
        value = tl.load(x_ptr + i)
        total += value
        least = tl.minimum(least, value)
    total, least = total.to(tl.float32), least.to(tl.float32)
    tl.store(out_ptr, total)
    tl.store(out_ptr + 1, least)


def numbers_assigned_in_a_tuple() -> Launched:
    x, out = torch.randn(N), torch.empty(2)
    tuple_kernel[(1,)](x, out, N)
    return Launched(out, torch.stack([x.sum(), x.min()]), x, flops=N)


@triton.jit
def static_range_kernel(x_ptr, out_ptr, N: tl.constexpr, STEPS: tl.constexpr):
    acc = tl.zeros((N,), dtype=tl.float32)
    for i in tl.static_range(0, STEPS, 2):
        if i != 2:
            acc += tl.load(x_ptr + i * N + tl.arange(0, N))
    for _ in tl.range(1, 3, num_stages=2, warp_specialize=False):
        acc *= 2
    tl.store(out_ptr + tl.arange(0, N), acc)


def static_range() -> Launched:
    x, out = torch.randn(8, N), torch.empty(N)
    static_range_kernel[(1,)](x, out, N, 8)
    return Launched(out, (x[0] + x[4] + x[6]) * 4, read=3 * N * 4, flops=5 * N)


@triton.jit
def data_while_kernel(x_ptr, out_ptr):
    value = tl.load(x_ptr)
    steps = 0
    while value > 1.0:
        value = value / 2
        steps += 1
    tl.store(out_ptr, steps)


def a_loop_that_depends_on_data() -> Launched:
    x, out = torch.tensor([100.0]), torch.empty(1, dtype=torch.int32)
    data_while_kernel[(1,)](x, out)
    return Launched(out, torch.tensor([7]), x, flops=7)


@triton.jit
def boolean_kernel(x_ptr, out_ptr, bias_ptr, n, flag, N: tl.constexpr, ON: tl.constexpr):
    at = tl.arange(0, N)
    inside = at >= 4 and at < n
    outside = not inside or at == 8
    x = tl.load(x_ptr + at)
    if bias_ptr is not None and tl.load(bias_ptr) > 0:  # a constant ends it
        x += tl.load(bias_ptr + at)
    if flag or ON:
        x += 1
    tl.store(out_ptr + at, tl.where(outside, 0.0, x))


def and_or_not_of_blocks() -> Launched:
    x, out = torch.randn(N), torch.empty(N)
    boolean_kernel[(1,)](x, out, None, 40, True, N, False)
    at = torch.arange(N)
    return Launched(out, torch.where((at >= 4) & (at < 40) & (at != 8), x + 1, 0.0), x)


@triton.jit
def extremes_kernel(x_ptr, y_ptr, out_ptr, n, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    last = min((tl.program_id(0) + 1) * N, n)
    tl.store(out_ptr + at, max(min(x, y), minimum(x, -y)) * last * how_many(n, N))


def min_and_max_of_blocks() -> Launched:
    x, y, out = torch.randn(2 * N), torch.randn(2 * N), torch.empty(2 * N)
    extremes_kernel[(2,)](x, y, out, 100, N)
    last = torch.tensor([64.0, 100.0]).repeat_interleave(N)
    return Launched(out, torch.maximum(torch.minimum(x, y), torch.minimum(x, -y)) * last * 2, [x, y])


@triton.jit
def inner(x, factor, POWER: tl.constexpr = 2):
    result = x
    for _ in tl.static_range(POWER - 1):
        result *= x
    return result * factor


@triton.jit
def sign(USUAL: tl.constexpr):
    weight: tl.float32 = 1.0
    if USUAL:
        return weight.to(tl.float32)
    return -1.0


@triton.jit
def pair(x, y):
    return inner(x, 2.0), inner(y, 3, POWER=1)


@triton.jit
def nested_kernel(x_ptr, out_ptr, N: tl.constexpr, function: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    a, b = function(x, x)
    tl.store(out_ptr + at, (a + rsqrt(b * b)) * sign(True).to(x.dtype) * sign(False).to(x.dtype))


def nested_functions() -> Launched:
    x, out = torch.randn(N), torch.empty(N)
    nested_kernel[(1,)](x, out, N, pair)
    return Launched(out, -(2 * x * x + 1 / (3 * x).abs()), x, tolerance=1e-5)


class Pair(NamedTuple):
    first: torch.Tensor
    second: float


@triton.jit
def tuple_argument_kernel(given, out_ptr, numbers, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out_ptr + at, tl.load(given.first + at) * given.second + numbers[1])


def tuples_as_arguments() -> Launched:
    x, out = torch.randn(N), torch.empty(N)
    tuple_argument_kernel[(1,)](Pair(x, 2.0), out, (1, 5), N)
    return Launched(out, x * 2 + 5, x)


@triton.jit
def integers_kernel(x_ptr, out_ptr, large, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    y = (x // 3) * 10 + x % 3 + (x >> 1) + (x << 2) + (x ^ 5) + (x & 6) + (x | 1) + ~x + (-x)
    y += (~x.to(tl.uint8)).to(tl.int32)
    tl.store(out_ptr + at, y.to(tl.int64) + large * 2)


def integer_operators() -> Launched:
    """Division and remainder are C's, towards zero."""
    x, out = torch.arange(-32, 32, dtype=torch.int32), torch.empty(N, dtype=torch.int64)
    integers_kernel[(1,)](x, out, 3_000_000_000, N)
    quotient = torch.div(x, 3, rounding_mode="trunc")
    y = quotient * 10 + (x - 3 * quotient) + (x >> 1) + (x << 2) + (x ^ 5) + (x & 6) + (x | 1) + ~x + (-x)
    y += 255 - (x & 255)
    return Launched(out, y.long() + 6_000_000_000, x, flops=0)


@triton.jit
def printing_kernel(x_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    tl.static_print("N is", N)
    tl.device_print("x", x)
    print("x", x)
    tl.device_assert(x < 1e9, "too large")
    tl.debug_barrier()
    tl.assume(N > 0)
    tl.store(out_ptr + at, x)


def prints_asserts_and_barriers() -> Launched:
    x, out = torch.randn(N), torch.empty(N)
    printing_kernel[(1,)](x, out, N)
    return Launched(out, x, x)
