"""Blocks: choosing, reshaping, products, elementwise functions, narrow floats."""

# ruff: noqa: PLR0917

from functools import partial

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda.libdevice import rsqrt
from triton.language.extra.libdevice import erf, tanh

from ..interpreting import Launched

M, N = 16, 32


@triton.jit
def choosing_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    chosen = tl.where(x > 0, x, y * 2)
    tl.store(out_ptr + at, tl.clamp(chosen, -1.0, 1.0) + tl.minimum(x, y) - tl.maximum(x, 0.5) + tl.abs(x))


def _choosing(kind: torch.dtype, tolerance: float, flops: int | None = None) -> Launched:
    x, y, out = torch.randn(N).to(kind), torch.randn(N).to(kind), torch.empty(N, dtype=kind)
    choosing_kernel[(1,)](x, y, out, N)
    expected = torch.where(x > 0, x, y * 2).clamp(-1, 1) + torch.minimum(x, y) - x.clamp(min=0.5) + x.abs()
    return Launched(out, expected, [x, y], flops=flops, tolerance=tolerance)


where_clamp_minimum_and_maximum = partial(_choosing, torch.float32, 1e-6, 4 * N)
choosing_in_bfloat16 = partial(_choosing, torch.bfloat16, 1e-2)


@triton.jit
def arithmetic_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    """Each step rounds to the operands' type, as the hardware does."""
    at = tl.arange(0, N)
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    z = (x + y) * x - y * 3
    tl.store(out_ptr + at, tl.where(x <= y, -z, z + 1.0))


def arithmetic_in_bfloat16() -> Launched:
    x, y, out = torch.randn(N).bfloat16(), torch.randn(N).bfloat16(), torch.empty(N, dtype=torch.bfloat16)
    arithmetic_kernel[(1,)](x, y, out, N)
    z = (x + y) * x - y * 3
    return Launched(out, torch.where(x <= y, -z, z + 1), [x, y], tolerance=0)


@triton.jit
def conversions_kernel(x_ptr, out_ptr, N: tl.constexpr, KIND: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    tl.store(out_ptr + at, x.to(KIND).to(tl.float32) + tl.cast(x, tl.int32) + (x > 0).to(tl.float32))


def _converted(kind: tl.dtype, through: torch.dtype) -> Launched:
    x, out = torch.randn(N), torch.empty(N)
    conversions_kernel[(1,)](x, out, N, kind)
    return Launched(out, x.to(through).float() + x.int() + (x > 0).float(), x)


conversion_to_bfloat16 = partial(_converted, tl.bfloat16, torch.bfloat16)
conversion_to_e4m3 = partial(_converted, tl.float8e4nv, torch.float8_e4m3fn)
conversion_to_float64 = partial(_converted, tl.float64, torch.float64)


@triton.jit
def shapes_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + at)
    even, odd = tl.split(tl.reshape(x, (M, N // 2, 2)))
    joined = tl.join(even + 1, odd * 2).reshape(M, N)
    folded = tl.permute(tl.reshape(joined, (M, 4, N // 4)), (2, 0, 1))
    unfolded = tl.trans(folded, (1, 2, 0)).reshape(M, N)
    tl.store(out_ptr + at, unfolded)
    across = tl.arange(0, N)[:, None] * M + tl.arange(0, M)[None, :]
    tl.store(out_ptr + M * N + across, tl.trans(x))
    tl.store(out_ptr + 2 * M * N + across, x.T + tl.broadcast_to(tl.expand_dims(tl.arange(0, M), 0), (N, M)))
    tl.store(out_ptr + 3 * M * N + tl.arange(0, M * N), tl.interleave(even, odd).ravel())


def join_split_reshape_and_permute() -> Launched:
    x, out = torch.randn(M, N), torch.empty(4 * M * N)
    shapes_kernel[(1,)](x, out, M, N)
    pairs = x.reshape(M, N // 2, 2) * torch.tensor([1, 2]) + torch.tensor([1, 0])
    expected = [pairs.reshape(M, N), x.T, x.T + torch.arange(M), x]
    return Launched(out, torch.cat([part.flatten() for part in expected]), x)


@triton.jit
def gather_kernel(x_ptr, index_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out_ptr + at, tl.gather(tl.load(x_ptr + at), tl.load(index_ptr + at), axis=1))


def gather_in_a_block() -> Launched:
    x, index, out = torch.randn(M, N), torch.randint(0, N, (M, N), dtype=torch.int32), torch.empty(M, N)
    gather_kernel[(1,)](x, index, out, M, N)
    return Launched(out, x.gather(1, index.long()), [x, index])


@triton.jit
def filling_kernel(out_ptr, N: tl.constexpr, KIND: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.full((N,), 1.5, KIND) + tl.zeros([N], dtype=KIND)
    tl.store(out_ptr + at, tl.cat(x, tl.zeros_like(x), can_reorder=True).reshape(2, N).max(0))


def full_zeros_and_cat() -> Launched:
    out = torch.empty(N, dtype=torch.bfloat16)
    filling_kernel[(1,)](out, N, tl.bfloat16)
    return Launched(out, torch.full((N,), 1.5))


@triton.jit
def product_kernel(a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, KIND: tl.constexpr):
    m, n, k = tl.arange(0, M)[:, None], tl.arange(0, N), tl.arange(0, K)
    a, b = tl.load(a_ptr + m * K + k[None, :]), tl.load(b_ptr + k[:, None] * N + n[None, :])
    acc = tl.zeros((M, N), dtype=KIND)
    acc = tl.dot(a, b, acc, out_dtype=KIND)
    tl.store(c_ptr + m * N + n[None, :], acc)


def _product(kind: torch.dtype, accumulator: tl.dtype = tl.float32) -> Launched:
    integers = not kind.is_floating_point
    a, b = (torch.randint(-9, 9, s).to(kind) if integers else torch.randn(s).to(kind) for s in ((M, N), (N, M)))
    c = torch.empty(M, M, dtype=torch.int32 if integers else torch.float32)
    product_kernel[(1,)](a, b, c, M, M, N, accumulator)
    return Launched(c, a.double() @ b.double(), [a, b], flops=2 * M * M * N, tolerance=1e-5)


dot_of_float32 = partial(_product, torch.float32)
dot_of_bfloat16 = partial(_product, torch.bfloat16)
dot_of_int8 = partial(_product, torch.int8, tl.int32)
dot_of_e4m3 = partial(_product, torch.float8_e4m3fn)


@triton.jit
def functions_kernel(x_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    y = tl.exp(x) + tl.exp2(x) + tl.log(x + 1) + tl.log2(x + 1) + tl.sqrt(x) + tl.math.rsqrt(x + 1) + tl.sin(x)
    y += tl.cos(x) + tl.math.erf(x) + tl.floor(x) + tl.ceil(x) + tl.fma(x, x, x) + tl.fdiv(x, x + 1)
    tl.store(out_ptr + at, y + tl.math.sqrt_rn(x) + tl.div_rn(x, x + 1))


def functions_of_the_language() -> Launched:
    x, out = torch.rand(N) * 3, torch.empty(N)
    functions_kernel[(1,)](x, out, N)
    y = x.exp() + x.exp2() + (x + 1).log() + (x + 1).log2() + x.sqrt() + (x + 1).rsqrt() + x.sin() + x.cos()
    y += x.erf() + x.floor() + x.ceil() + x * x + x + x / (x + 1) + x.sqrt() + x / (x + 1)
    return Launched(out, y, x, tolerance=1e-5)


@triton.jit
def libdevice_kernel(x_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    y = tanh(x) + erf(x) + libdevice.pow(x, 3.0) + libdevice.log1p(x) + libdevice.expm1(x)
    y += tl.extra.cuda.libdevice.atan2(x, y) + libdevice.round(x) + libdevice.acos(x / 4) + libdevice.lgamma(x + 1)
    y += tl.where(libdevice.isnan(x).to(tl.int1), 1.0, libdevice.fast_expf(x)) + libdevice.rint(x)
    tl.store(out_ptr + at, y + rsqrt(x + 1) + libdevice.popc(tl.arange(0, N)) + libdevice.mul_rn(x, 2.0))


def functions_of_libdevice() -> Launched:
    x, out = torch.rand(N) * 3, torch.empty(N)
    libdevice_kernel[(1,)](x, out, N)
    y = x.tanh() + x.erf() + x**3 + x.log1p() + x.expm1()
    y = y + torch.atan2(x, y) + x.round() + (x / 4).acos() + torch.lgamma(x + 1) + x.exp() + x.round()
    ones = torch.tensor([bin(i).count("1") for i in range(N)])
    return Launched(out, y + (x + 1).rsqrt() + ones + x * 2, x, tolerance=1e-5)


@triton.jit
def random_kernel(out_ptr, ints_ptr, seed, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(ints_ptr + at, tl.randint(seed, at))
    tl.store(out_ptr + at, tl.rand(seed, at))
    tl.store(out_ptr + N + at, (tl.randn(seed, at) + tl.randn(seed, at + N)) * 0.0)


#: The first of the four words of Philox-4x32-10 with seed 7, for the first four offsets (Salmon et al., Parallel random numbers).
_WORDS = torch.tensor([-195003859, 1747881627, 26092480, 1675892246])


def random_numbers() -> Launched:
    out, ints = torch.empty(2 * 4), torch.empty(4, dtype=torch.int32)
    random_kernel[(1,)](out, ints, 7, 4)
    uniform = torch.where(_WORDS < 0, -_WORDS - 1, _WORDS).double() * 4.6566127342e-10
    return Launched([ints, out], [_WORDS, torch.cat([uniform, torch.zeros(4)])])


@triton.jit
def halving(x, y):
    while x > 1.0:
        x /= 2
    return x, y + 1


@triton.jit
def map_kernel(x_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    halved, ones = tl.map_elementwise(halving, tl.load(x_ptr + at), 0)
    tl.store(out_ptr + at, halved + ones)


def a_scalar_function_for_each_element() -> Launched:
    """One and a half is halved once and three twice; the sum is one more operation for each of four."""
    x, out = torch.tensor([0.5, 1.5, 3.0, 1.0]), torch.empty(4)
    map_kernel[(1,)](x, out, 4)
    return Launched(out, torch.tensor([1.5, 1.75, 1.75, 2.0]), x, flops=3 + 4)


@triton.jit
def scaled_kernel(
    x_ptr, y_ptr, x_scale_ptr, y_scale_ptr, out_ptr, N: tl.constexpr, FORMAT: tl.constexpr, IN_BYTE: tl.constexpr
):
    """``N`` x 2``N`` times its like, of which each row of 32 numbers along K has a scale."""
    row, column, k = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :], tl.arange(0, 2 * N // IN_BYTE)
    x = tl.load(x_ptr + row * (2 * N // IN_BYTE) + k[None, :])
    y = tl.load(y_ptr + k[:, None] * N + column)
    scales = row * (2 * N // 32) + tl.arange(0, 2 * N // 32)[None, :]
    product = tl.dot_scaled(x, tl.load(x_scale_ptr + scales), FORMAT, y, tl.load(y_scale_ptr + scales), FORMAT)
    tl.store(out_ptr + row * N + column, product)


def _scaled(codes: list[torch.Tensor], numbers: list[torch.Tensor], kind: str, in_byte: int) -> Launched:
    scales = [torch.randint(120, 134, (N, 2 * N // 32), dtype=torch.uint8) for _ in codes]
    factors = [torch.exp2(scale.float() - 127).repeat_interleave(32, 1) for scale in scales]
    out = torch.empty(N, N)
    scaled_kernel[(1,)](*codes, *scales, out, N, kind, in_byte)
    expected = (numbers[0] * factors[0]) @ (numbers[1] * factors[1].T)
    return Launched(out, expected, [*codes, *scales], flops=2 * N * N * 2 * N)


def scaled_products() -> Launched:
    codes = [torch.randn(shape).to(torch.float8_e4m3fn) for shape in ((N, 2 * N), (2 * N, N))]
    return _scaled(codes, [code.float() for code in codes], "e4m3", 1)


def scaled_products_of_four_bits() -> Launched:
    """Two to a byte along K, the first in the lower half."""
    nibbles = [torch.randint(0, 16, shape, dtype=torch.uint8) for shape in ((N, 2 * N), (2 * N, N))]
    packed = [nibbles[0][:, ::2] | nibbles[0][:, 1::2] << 4, nibbles[1][::2] | nibbles[1][1::2] << 4]
    known = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    return _scaled([part.contiguous() for part in packed], [known[part.long()] for part in nibbles], "e2m1", 2)
