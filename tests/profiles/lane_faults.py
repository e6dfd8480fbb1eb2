"""Kernels for lanes: of odd structure, and products with a fault that costs time and leaves the result right, each beside a correct twin that looks alike."""

import torch
import triton
import triton.language as tl
from tilescope_kernels.spec import Cost, Implementation, KernelSpec, Workload
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def product_kernel(  # noqa: PLR0917
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    BARRIERS: tl.constexpr, ACROSS: tl.constexpr, TRIANGLE: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0), tl.program_id(1)
    if TRIANGLE:
        # The rows of a triangle have from one step to all. The longest are the last, or the first.
        row = column if LAST else tl.num_programs(1) - 1 - column
        column = tl.program_id(0)
        K_END = tl.cdiv(K * (row + 1), tl.num_programs(1) * BK) * BK
    else:
        K_END = K
    rm = row * BM + tl.arange(0, BM)
    rn = column * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K_END, BK):
        x = tl.load(a + rm[:, None] * K + (k + rk)[None, :])
        y = tl.load(b + (k + rk)[:, None] * N + rn[None, :])
        for _ in tl.static_range(BARRIERS):
            tl.debug_barrier()
        acc = tl.dot(x, y, acc)
    if ACROSS:
        # Every element in a sector of its own.
        tl.store(c + (rn[None, :] * M + rm[:, None]) * 16, acc.to(c.dtype.element_ty))
    else:
        tl.store(c + rm[:, None] * N + rn[None, :], acc.to(c.dtype.element_ty))


@triton.jit
def odd_kernel(x, y, lock, n, BLOCK: tl.constexpr):
    """Returns early, waits for a lock, loads in branches, and reduces."""
    first = tl.program_id(0) * BLOCK
    if first >= n:
        return
    at = first + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for step in range(n):
        if step % 2 == 0:
            total += tl.load(x + at, mask=at < n, other=0.0)
        else:
            total -= tl.sum(tl.load(y + at, mask=at < n, other=0.0), 0)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(y + at, tl.load(y + at, mask=at < n) + total, mask=at < n)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


def odd(a, b):
    lock = torch.zeros(1, dtype=torch.int32, device=a.device)
    odd_kernel[(2,)](a, b, lock, a.numel(), BLOCK=128)
    return b


@triton.jit
def described_kernel(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # noqa: PLR0917
    """A product whose tiles come by descriptors."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([m, k]), b.load([k, n]), acc)
    c.store([m, n], acc.to(tl.float16))


def described(a, b):
    c = torch.empty(a.shape[0], b.shape[1], device=a.device, dtype=a.dtype)
    given = [TensorDescriptor.from_tensor(t, block) for t, block in ((a, [128, 64]), (b, [64, 128]), (c, [128, 128]))]
    described_kernel[a.shape[0] // 128, b.shape[1] // 128](*given, a.shape[1], BM=128, BN=128, BK=64, num_stages=3)
    return c


@gluon.jit
def _supply(  # noqa: PLR0917
    a_tiles, b_tiles, next_ptr, a_ring, b_ring, ready, free, m, n, K, PLACES: gl.constexpr, CHAIN: gl.constexpr
):
    """Copies the tiles of each step. With ``CHAIN`` each step's place in memory says where the next one is."""
    k = 0
    for step in range(K // 64):
        slot, phase = step % PLACES, step // PLACES & 1
        mbarrier.wait(free.index(slot), phase ^ 1)
        arrived = ready.index(slot)
        mbarrier.expect(arrived, (4 * 64 + 128) * 64 * 2)
        for part in gl.static_range(4):
            tma.async_copy_global_to_shared(a_tiles, [m + part * 64, k], arrived, a_ring.index(slot * 4 + part))
        tma.async_copy_global_to_shared(b_tiles, [k, n], arrived, b_ring.index(slot))
        if CHAIN:
            for _ in gl.static_range(4):
                k = gl.load(next_ptr + k)
        else:
            k += 64


@gluon.jit
def _multiply(  # noqa: PLR0917
    FIRST: gl.constexpr, PARTS: gl.constexpr, c_ptr, a_ring, b_ring, ready, free, m, n, N, K, PLACES: gl.constexpr,
    one, WORK: gl.constexpr,
):  # fmt: skip
    """Multiplies ``PARTS`` of the four parts of 64 rows, from ``FIRST``, and each step ``WORK`` times by ``one``."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    t0 = gl.zeros([64, 128], gl.float32, LAYOUT)
    t1 = gl.zeros([64, 128], gl.float32, LAYOUT)
    t2 = gl.zeros([64, 128], gl.float32, LAYOUT)
    for step in range(K // 64):
        slot, phase = step % PLACES, step // PLACES & 1
        mbarrier.wait(ready.index(slot), phase)
        t0 = warpgroup_mma(a_ring.index(slot * 4 + FIRST), b_ring.index(slot), t0, is_async=True)
        if PARTS > 1:
            t1 = warpgroup_mma(a_ring.index(slot * 4 + FIRST + 1), b_ring.index(slot), t1, is_async=True)
        if PARTS > 2:
            t2 = warpgroup_mma(a_ring.index(slot * 4 + FIRST + 2), b_ring.index(slot), t2, is_async=True)
        t0, t1, t2 = warpgroup_mma_wait(0, deps=[t0, t1, t2])
        mbarrier.arrive(free.index(slot), count=1)
        for _ in gl.static_range(WORK):
            t0 *= one
            if PARTS > 1:
                t1 *= one
            if PARTS > 2:
                t2 *= one
    across = n + gl.arange(0, 128, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    rows = m + FIRST * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, LAYOUT))[:, None]
    gl.store(c_ptr + rows * N + across, t0.to(gl.float16))
    if PARTS > 1:
        gl.store(c_ptr + (rows + 64) * N + across, t1.to(gl.float16))
    if PARTS > 2:
        gl.store(c_ptr + (rows + 128) * N + across, t2.to(gl.float16))


@gluon.jit
def partitions_kernel(  # noqa: PLR0917
    a_tiles, b_tiles, next_ptr, c_ptr, one, N, K, PARTS: gl.constexpr, PLACES: gl.constexpr, CHAIN: gl.constexpr,
    WORK: gl.constexpr,
):  # fmt: skip
    """One warp copies, two groups of warps multiply: the first ``PARTS`` of a tile's four parts, the second the others."""
    a_ring = gl.allocate_shared_memory(gl.float16, [PLACES * 4, 64, 64], a_tiles.layout)
    b_ring = gl.allocate_shared_memory(gl.float16, [PLACES, 64, 128], b_tiles.layout)
    ready = gl.allocate_shared_memory(gl.int64, [PLACES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [PLACES, 1], mbarrier.MBarrierLayout())
    for place in gl.static_range(PLACES):
        mbarrier.init(ready.index(place), count=1)
        mbarrier.init(free.index(place), count=2)
    fence_async_shared()
    m, n = gl.program_id(0) * 256, gl.program_id(1) * 128
    gl.warp_specialize(
        [
            (_multiply, (0, PARTS, c_ptr, a_ring, b_ring, ready, free, m, n, N, K, PLACES, one, WORK)),
            (_multiply, (PARTS, 4 - PARTS, c_ptr, a_ring, b_ring, ready, free, m, n, N, K, PLACES, one, WORK)),
            (_supply, (a_tiles, b_tiles, next_ptr, a_ring, b_ring, ready, free, m, n, K, PLACES, CHAIN)),
        ],
        [4, 1],
        [232, 24],
    )


def _given(a, b):
    """Descriptors of the operands' tiles, and the result."""
    tiles = gl.NVMMASharedLayout(128, 16)
    given = [GluonDescriptor.from_tensor(t, block, tiles) for t, block in ((a, [64, 64]), (b, [64, 128]))]
    return given, torch.empty(a.shape[0], b.shape[1], device=a.device, dtype=a.dtype)


def partitions(a, b, *, parts=2, places=3, chain=False, work=0):
    tiles, c = _given(a, b)
    following = torch.arange(16, a.shape[1] + 16, 1, dtype=torch.int32, device=a.device)
    partitions_kernel[a.shape[0] // 256, b.shape[1] // 128](
        *tiles, following, c, 1.0, b.shape[1], a.shape[1], PARTS=parts, PLACES=places, CHAIN=chain, WORK=work, num_warps=4
    )  # fmt: skip
    return c


def product(
    a, b, *, BM=128, BN=128, BK=64, barriers=0, across=False, triangle=False, last=False,
    num_stages=4, num_warps=8,
):  # fmt: skip
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((N, M, 16) if across else (M, N), device=a.device, dtype=a.dtype)
    grid = M // BM, N // BN
    product_kernel[grid[::-1] if triangle else grid](
        a, b, c, M, N, K, BM=BM, BN=BN, BK=BK, BARRIERS=barriers, ACROSS=across,
        TRIANGLE=triangle, LAST=last, num_stages=num_stages, num_warps=num_warps,
    )  # fmt: skip
    return c[..., 0].t() if across else c


def _inputs(workload, device):
    m, n, k = (workload.dims[name] for name in "mnk")
    if torch.device(device).type == "meta":
        return {"a": torch.empty(m, k, device=device).half(), "b": torch.empty(k, n, device=device).half()}
    numbers = torch.Generator(device).manual_seed(workload.seed)
    return {name: torch.randn(s, device=device, generator=numbers).half() for name, s in (("a", (m, k)), ("b", (k, n)))}


def _cost(workload, _direction):
    m, n, k = (workload.dims[name] for name in "mnk")
    return Cost(2 * m * n * k, 2 * (m * k + k * n), 2 * m * n, workload.dtype)


def _reference(a, b):
    """The product of a triangle: of each tile's rows as many steps as its place asks for."""
    tiles = a.shape[0] // 128
    ends = ((torch.arange(tiles, device=a.device) + 1) * a.shape[1] // tiles + 63) // 64 * 64
    return (a * (torch.arange(a.shape[1], device=a.device) < ends.repeat_interleave(128)[:, None])) @ b


def _kernel(name, size, reference=torch.matmul, **implementations):
    return KernelSpec(
        name=name, summary=name, dims=("m", "n", "k"), reference=reference, inputs=_inputs, cost=_cost, tolerance={"fp16": 2e-3},
        implementations={key: Implementation(call) for key, call in implementations.items()},
        workloads=(Workload(dict(zip("mnk", size, strict=True)), "fp16", label="one"),),
    )  # fmt: skip


def _spec(name, size, fault, twin, call=product):
    """A kernel whose implementations are ``fault`` and ``twin``, with these settings of ``call``."""
    reference = _reference if fault.get("triangle") else torch.matmul
    return _kernel(name, size, reference, fault=lambda a, b: call(a, b, **fault), twin=lambda a, b: call(a, b, **twin))


ODD = _kernel("odd", (16, 16, 16), lambda a, b: b, triton=odd)
DESCRIBED = _kernel("described", (2048, 2048, 2048), triton=described)
ONE_STAGE = _spec("one_stage", (2048, 2048, 2048), {"num_stages": 1}, {})
EPILOGUE = _spec("epilogue", (2048, 2048, 2048), {"across": True, "BM": 256}, {"BM": 256})
BARRIERS = _spec("barriers", (2048, 2048, 2048), {"barriers": 8}, {})
SHALLOW = _spec("shallow", (2048, 2048, 2048), {"num_stages": 2, "BK": 32}, {})
RING = _spec("ring", (3072, 1408, 4096), {"places": 1}, {}, partitions)
UNEVEN = _spec("uneven", (3072, 1408, 4096), {"parts": 3, "work": 12}, {"work": 12}, partitions)
CHAIN = _spec("chain", (3072, 1408, 4096), {"chain": True}, {}, partitions)
LONG_LAST = _spec("long_last", (4224, 1024, 8192), {"triangle": True, "last": True}, {"triangle": True})
#: The rule that names each fault.
RULES = {
    "ONE_STAGE": "shallow-pipeline", "EPILOGUE": "epilogue-alone", "BARRIERS": "block-barriers", "SHALLOW": "shallow-pipeline",
    "RING": "shallow-pipeline", "UNEVEN": "uneven-warps", "CHAIN": "starved-products", "LONG_LAST": "long-tail",
}  # fmt: skip
