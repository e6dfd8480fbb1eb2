"""Loads, stores, atomics, block pointers and descriptors."""

# ruff: noqa: PLR0917

from functools import partial

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from ..interpreting import Launched

N = 64


@triton.jit
def options_kernel(x_ptr, out_ptr, n, N: tl.constexpr):
    at = tl.max_contiguous(tl.multiple_of(tl.program_id(0).to(tl.int64) * N, 16) + tl.arange(0, N).to(tl.int64), N)
    keep = at < n
    x = tl.load(x_ptr + at, mask=keep, other=-1.0, cache_modifier=".cg", eviction_policy="evict_last", volatile=True)
    tl.store(out_ptr + at, x, mask=keep & (x > 0.0), cache_modifier=".cs", eviction_policy="evict_first")


def masks_that_depend_on_values() -> Launched:
    x, out = torch.randn(100), torch.zeros(100)
    options_kernel[(2,)](x, out, 100, N)
    return Launched(out, x.relu(), x, written=int((x > 0).sum()) * 4)


@triton.jit
def policies_kernel(x_ptr, out_ptr, n, N: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    x = tl.load(x_ptr + at, at < n, 0.0, cache_modifier=".ca", eviction_policy="evict_first")
    tl.store(out_ptr + at, x, at < n, eviction_policy="evict_last", cache_modifier=".wt")


def _copied(kind: torch.dtype) -> Launched:
    x, out = torch.randn(100).to(kind), torch.empty(100, dtype=kind)
    policies_kernel[(2,)](x, out, 100, N)
    return Launched(out, x, x, flops=0)


bfloat16_in_and_out = partial(_copied, torch.bfloat16)
float64_in_and_out = partial(_copied, torch.float64)


@triton.jit
def booleans_kernel(x_ptr, mask_ptr, out_ptr, any_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    keep = tl.load(mask_ptr + at)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=keep, other=0.0))
    tl.store(any_ptr + at, keep & (at > 3))


def masks_of_booleans() -> Launched:
    x, mask, out, kept = torch.randn(N), torch.arange(N) % 3 == 0, torch.empty(N), torch.empty(N, dtype=torch.bool)
    booleans_kernel[(1,)](x, mask, out, kept, N)
    return Launched([out, kept], [torch.where(mask, x, 0), mask & (torch.arange(N) > 3)], read=N + 22 * 4)


@triton.jit
def atomics_kernel(x_ptr, index_ptr, sums_ptr, most_ptr, before_ptr, n, N: tl.constexpr):
    at = tl.arange(0, N)
    keep = at < n
    x, index = tl.load(x_ptr + at, mask=keep), tl.load(index_ptr + at, mask=keep, other=0)
    tl.atomic_add(sums_ptr + index, x, mask=keep, sem="relaxed")
    tl.atomic_max(most_ptr + index, at, mask=keep)
    tl.store(before_ptr, tl.atomic_add(before_ptr + 1, 5))


def _atomics(kind: torch.dtype) -> Launched:
    n = 50
    x, index = torch.randint(-4, 4, (n,)).to(kind), torch.randint(0, 8, (n,))
    sums, most, before = torch.zeros(8, dtype=kind), torch.zeros(8, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
    atomics_kernel[(1,)](x, index, sums, most, before, n, N)
    expected = torch.zeros(8, dtype=torch.float32).index_add(0, index, x.float())
    last = torch.zeros(8, dtype=torch.int64).scatter_reduce(0, index, torch.arange(n), "amax")
    read = 2 * x.nbytes + index.nbytes + n * 4 + 4
    written = x.nbytes + n * 4 + 8
    return Launched([sums, most, before], [expected, last, torch.tensor([1, 6])], read=read, written=written)


atomics_with_masks = partial(_atomics, torch.float32)
atomics_in_bfloat16 = partial(_atomics, torch.bfloat16)


@triton.jit
def float_atomics_kernel(x_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.atomic_max(out_ptr + tl.zeros((N,), tl.int32), x)
    tl.atomic_min(out_ptr + 1 + tl.zeros((N,), tl.int32), x)


def atomic_extremes_of_floats() -> Launched:
    x, out = torch.randn(N), torch.zeros(2)
    float_atomics_kernel[(1,)](x, out, N)
    return Launched(out, torch.stack([x.max(), x.min()]), read=3 * N * 4, written=2 * N * 4)


@triton.jit
def block_pointer_kernel(x_ptr, out_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    row = tl.program_id(0) * BM
    source = tl.make_block_ptr(x_ptr, (M, N), (N, 1), (row, 0), (BM, BN), (1, 0))
    target = tl.make_block_ptr(out_ptr, (M, N), (N, 1), (row, 0), (BM, BN), (1, 0))
    for _ in range(0, N, BN):
        tile = tl.load(source, boundary_check=(0, 1), padding_option="zero")
        tl.store(target, (tile * 2).to(out_ptr.dtype.element_ty), boundary_check=(0, 1))
        source, target = tl.advance(source, (0, BN)), tl.advance(target, (0, BN))


def block_pointers() -> Launched:
    x, out = torch.randn(20, 40), torch.empty(20, 40)
    block_pointer_kernel[(2,)](x, out, 20, 40, 16, 32)
    return Launched(out, x * 2, x)


@triton.jit
def device_descriptor_kernel(x_ptr, out_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    source = tl.make_tensor_descriptor(x_ptr, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    target = tl.make_tensor_descriptor(out_ptr, [M, N], [N, 1], [BM, BN])
    at = [tl.program_id(0) * BM, tl.program_id(1) * BN]
    tile = source.load(at)
    target.store(at, tile + tl.load_tensor_descriptor(source, at))


def descriptors_made_in_the_kernel() -> Launched:
    x, out = torch.randn(20, 40), torch.empty(20, 40)
    device_descriptor_kernel[(2, 2)](x, out, 20, 40, 16, 32)
    return Launched(out, x * 2, read=2 * x.nbytes)


@triton.jit
def host_descriptor_kernel(source, target, sums, BM: tl.constexpr, BN: tl.constexpr):
    at = [tl.program_id(0) * BM, tl.program_id(1) * BN]
    tile = source.load(at)
    target.store(at, tile.T.to(target.dtype).trans())
    sums.atomic_add([0, tl.program_id(1) * BN], tl.sum(tile.to(tl.float32), 0, keep_dims=True))


def descriptors_made_by_the_host() -> Launched:
    x, out, sums = torch.randn(32, 64).bfloat16(), torch.empty(32, 64, dtype=torch.bfloat16), torch.zeros(1, 64)
    tiles = [TensorDescriptor.from_tensor(tensor, [16, 32]) for tensor in (x, out)]
    host_descriptor_kernel[(2, 2)](*tiles, TensorDescriptor.from_tensor(sums, [1, 32]), 16, 32)
    traffic = x.nbytes + 2 * sums.nbytes
    return Launched([out, sums], [x, x.float().sum(0)[None]], read=traffic, written=traffic)


@triton.jit
def descriptor_atomics_kernel(x, out, N: tl.constexpr):
    tile = x.load([tl.program_id(0), 0])
    out.atomic_max([0, 0], tile)
    out.atomic_or([1, 0], tile)


def atomics_through_descriptors() -> Launched:
    x, out = torch.randint(0, 99, (3, 32), dtype=torch.int32), torch.zeros(2, 32, dtype=torch.int32)
    ends = [TensorDescriptor.from_tensor(tensor, [1, 32]) for tensor in (x, out)]
    descriptor_atomics_kernel[(3,)](*ends, 32)
    traffic = 3 * out.nbytes
    return Launched(out, torch.stack([x.amax(0), x[0] | x[1] | x[2]]), read=x.nbytes + traffic, written=traffic)


@triton.jit
def grouped_kernel(table_ptr, sizes_ptr, out_ptr, N: tl.constexpr):
    group = tl.program_id(0)
    x_ptr = tl.load(table_ptr + group).to(tl.pointer_type(tl.float32))
    size = tl.load(sizes_ptr + group)
    at = tl.arange(0, N)
    tl.store(out_ptr + group, tl.sum(tl.load(x_ptr + at, mask=at < size, other=0.0)))


def pointers_of_pointers() -> Launched:
    parts = [torch.randn(size) for size in (10, 64, 33)]
    table = torch.tensor([part.data_ptr() for part in parts])
    sizes, out = torch.tensor([len(part) for part in parts]), torch.empty(3)
    grouped_kernel[(3,)](table, sizes, out, N)
    return Launched(out, torch.stack([part.sum() for part in parts]), [*parts, table, sizes], flops=3 * (N - 1))


@triton.jit
def waiting_kernel(flags_ptr, out_ptr, HOW: tl.constexpr):
    """Each program waits for the one after it, which on a GPU runs beside it."""
    program = tl.program_id(0)
    if program + 1 < tl.num_programs(0):
        if HOW == "load":
            while tl.load(flags_ptr + program + 1, volatile=True) == 0:
                pass
        elif HOW == "exchange":
            while tl.atomic_xchg(flags_ptr + program + 1, 0) == 0:
                pass
        else:
            while tl.atomic_cas(flags_ptr + program + 1, 1, 2) == 0:
                pass
    tl.store(out_ptr + program, program)
    tl.atomic_xchg(flags_ptr + program, 1)


def _waiting(how: str) -> Launched:
    out = torch.empty(3)
    waiting_kernel[(3,)](torch.zeros(3, dtype=torch.int32), out, how)
    # Two wait: an atomic is back, in vain, before the other program has its turn, and a load is not. Each sets its own flag.
    waits, sets = 2 * 4 * (1 if how == "load" else 2), 3 * 4
    return Launched(out, torch.arange(3.0), out, read=waits + sets, written=out.nbytes + sets + (how != "load") * waits)


waiting_by_loads = partial(_waiting, "load")
waiting_by_exchange = partial(_waiting, "exchange")
waiting_by_comparison = partial(_waiting, "compare")


@triton.jit
def barrier_kernel(arrived_ptr, x_ptr, out_ptr):
    """All programs meet once, and each then reads what the next one wrote before."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    tl.store(x_ptr + program, program)
    tl.atomic_add(arrived_ptr, 1)
    while tl.load(arrived_ptr, volatile=True) < programs:
        pass
    tl.store(out_ptr + program, tl.load(x_ptr + (program + 1) % programs))


def meeting_once() -> Launched:
    x, out = torch.empty(20), torch.empty(20)
    barrier_kernel[(20,)](torch.zeros(1, dtype=torch.int32), x, out)
    asked = (20 + 20) * 4
    return Launched(
        out, (torch.arange(20.0) + 1) % 20, x, read=asked + x.nbytes, written=20 * 4 + x.nbytes + out.nbytes
    )
