"""How people put the language together: persistent loops, types asked for, helpers, tuples, early returns."""

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.tools.tensor_descriptor import TensorDescriptor

from ..interpreting import Launched

N = 64


@triton.constexpr_function
def half_of(n):
    return n // 2


@triton.jit
def persistent_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    HALF: tl.constexpr = half_of(BLOCK)
    tl.static_assert(HALF * 2 == BLOCK, f"BLOCK {BLOCK} is odd")
    for tile in range(tl.program_id(0), tl.cdiv(n, HALF), tl.num_programs(0)):
        at = tile * HALF + tl.arange(0, HALF)
        x = tl.load(x_ptr + at, mask=at < n, other=0.0)
        assert HALF > 0
        tl.store(out_ptr + at, x if BLOCK > 8 else -x, mask=at < n)


def a_persistent_loop() -> Launched:
    x, out = torch.randn(200), torch.empty(200)
    persistent_kernel[(3,)](x, out, 200, N)
    return Launched(out, x, x)


@triton.jit
def grid_kernel(out_ptr, BLOCK: tl.constexpr):
    x, y, z = tl.program_id(0), tl.program_id(axis=1), tl.program_id(2)
    place = (x * tl.num_programs(1) + y) * tl.num_programs(2) + z
    if x == 1:
        return
    row, column = tl.swizzle2d(y, z, tl.num_programs(1), tl.num_programs(2), 2)
    tl.store(out_ptr + place, row * 10 + column)


def a_grid_of_three_dimensions_and_an_early_return() -> Launched:
    out = torch.zeros(2, 2, 3, dtype=torch.int32)
    grid_kernel[(2, 2, 3)](out, 1)
    swizzled = torch.tensor([[0, 10, 1], [11, 2, 12]])
    return Launched(out, torch.stack([swizzled, swizzled * 0]), written=6 * 4)


@triton.jit
def types_kernel(x_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    wide: tl.constexpr = tl.float32 if x.dtype == tl.float16 or x.dtype.is_bf16() else x.dtype
    kind: tl.constexpr = x_ptr.dtype.element_ty
    again = tl.load((x_ptr + at).to(tl.pointer_type(kind)))
    y = x.to(wide) * x.shape[0] + again.cast(tl.float32) * (x.type.scalar.primitive_bitwidth == 16) + x.numel
    tl.store(out_ptr + at, y.to(out_ptr.type.element_ty))


def types_asked_for() -> Launched:
    x, out = torch.randn(N).bfloat16(), torch.empty(N)
    types_kernel[(1,)](x, out, N)
    return Launched(out, x.float() * (N + 1) + N, read=2 * x.nbytes)


@triton.jit(noinline=True)
def rotate(pair, by):
    return pair[0] * by - pair[1], pair[1] * by + pair[0]


@triton.jit(do_not_specialize=["by"])
def tuples_kernel(x_ptr, out_ptr, by, N: tl.constexpr):
    at = tl.arange(0, N)
    pair = (tl.load(x_ptr + at), tl.load(x_ptr + N + at))
    for _ in tl.static_range(2):
        pair = rotate(pair, by)
    parts = (0, 1)
    for part in tl.static_range(len(parts)):
        tl.store(out_ptr + parts[part] * N + at, pair[part])


def tuples_through_functions_and_loops() -> Launched:
    x, out = torch.randn(2, N), torch.empty(2, N)
    tuples_kernel[(1,)](x, out, 0.5, N)
    turned = torch.complex(x[0], x[1]) * torch.complex(torch.tensor(0.5), torch.tensor(1.0)) ** 2
    return Launched(out, torch.stack([turned.real, turned.imag]), x, flops=8 * N)


@triton.jit
def rows_kernel(descriptor, rows_ptr, target, N: tl.constexpr, M: tl.constexpr):
    rows = tl.load(rows_ptr + tl.arange(0, M))
    target.scatter(descriptor.gather(rows, 0), rows, 0)


def rows_gathered_and_scattered() -> Launched:
    x, out = torch.randn(20, 32), torch.zeros(20, 32)
    rows = torch.tensor([3, 1, 7, 19, 0, 4, 5, 11], dtype=torch.int32)
    ends = [TensorDescriptor.from_tensor(tensor, [1, 32]) for tensor in (x, out)]
    rows_kernel[(1,)](ends[0], rows, ends[1], 32, 8)
    expected = torch.zeros(20, 32)
    expected[rows.long()] = x[rows.long()]
    return Launched(out, expected, read=8 * 32 * 4 + rows.nbytes, written=8 * 32 * 4)


@triton.jit
def unsigned_kernel(x_ptr, out_ptr, n, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at).to(tl.uint8)
    mixed = (x >> 1).to(tl.uint32) * 3 % 7 + tl.umulhi(x.to(tl.uint32) << 24, tl.full((N,), 256, tl.uint32))
    float_rest = (x.to(tl.float32) % 2.5).to(tl.int32)
    tl.store(out_ptr + at, (mixed.to(tl.int32) + float_rest).to(tl.int16) + (at + n) // 2)


def unsigned_integers_and_remainders() -> Launched:
    x, out = torch.arange(100, 164, dtype=torch.int16), torch.empty(N, dtype=torch.int16)
    unsigned_kernel[(1,)](x, out, 5, N)
    whole = x.int()
    expected = (whole >> 1) * 3 % 7 + whole + (whole.float() % 2.5).int() + (torch.arange(N) + 5) // 2
    return Launched(out, expected, x, flops=N)


@triton.jit
def ticket_kernel(flags_ptr, out_ptr, TIMES: tl.constexpr):
    """Each program waits for the one before it, which is done, and reads one number again and again."""
    program = tl.program_id(0)
    while tl.atomic_cas(flags_ptr, program, program) != program:
        pass
    total = 0.0
    for _ in range(TIMES):
        total += tl.load(out_ptr + program)
        tl.store(out_ptr + program, total)
    tl.atomic_xchg(flags_ptr, program + 1)


def programs_in_turn() -> Launched:
    flags, out = torch.zeros(1, dtype=torch.int32), torch.ones(4)
    ticket_kernel[(4,)](flags, out, 10)
    moved = 4 * 10 * 4 + 2 * 4 * 4
    return Launched([flags, out], [flags * 0 + 4, torch.full((4,), 512.0)], read=moved, written=moved, flops=4 * 10)


@triton.jit
def wrapping_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    tl.store(out_ptr + at, (x + 2147483647) * 1664525 - (x << 30))


def integers_that_overflow() -> Launched:
    x, out = torch.arange(N, dtype=torch.int32), torch.empty(N, dtype=torch.int32)
    wrapping_kernel[(1,)](x, out, N)
    return Launched(out, (x + 2147483647) * 1664525 - (x << 30), x)


@gluon.jit
def scaled_in_gluon(x, scale: gl.constexpr):
    return gl.where(x > 0, x * scale, gl.exp(x))


@gluon.jit
def gluon_kernel(x_ptr, out_ptr, sums_ptr, n, N: gl.constexpr):
    tiles: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    rows = gl.arange(0, 4, layout=gl.SliceLayout(1, tiles))
    columns = gl.arange(0, N, layout=gl.SliceLayout(0, tiles))
    at = rows[:, None] * n + columns[None, :]
    x = gl.load(x_ptr + at, mask=columns[None, :] < n, other=0.0)
    gl.store(out_ptr + at, scaled_in_gluon(x, 2), mask=columns[None, :] < n)
    sums = gl.convert_layout(gl.sum(x, axis=1), gl.BlockedLayout([1], [32], [4], [0]))
    flat = gl.arange(0, 4, gl.BlockedLayout([1], [32], [4], [0]))
    gl.store(sums_ptr + flat, sums)


def gluon_layouts() -> Launched:
    x = torch.randn(4, 25)
    out, sums = torch.empty_like(x), torch.empty(4)
    gluon_kernel[(1,)](x, out, sums, 25, 32)
    return Launched([out, sums], [torch.where(x > 0, 2 * x, x.exp()), x.sum(1)], x)
