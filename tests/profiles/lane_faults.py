"""Kernels for lanes: of odd structure, and products with a fault that costs time and leaves the result right, each beside a correct twin that looks alike."""

import torch
import triton
import triton.language as tl
from tilescope_kernels.spec import Cost, Implementation, KernelSpec, Workload
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def product_kernel(  # noqa: PLR0917
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    BARRIERS: tl.constexpr, ACROSS: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rm[:, None] * K + (k + rk)[None, :])
        y = tl.load(b + (k + rk)[:, None] * N + rn[None, :])
        for _ in tl.static_range(BARRIERS):
            tl.debug_barrier()
        acc = tl.dot(x, y, acc)
        for _ in tl.static_range(TURNED):
            # There and back again, in the layouts of memory.
            acc = tl.reshape(tl.trans(tl.reshape(acc, (BN, BM))), (BM, BN))
            acc = tl.reshape(tl.trans(tl.reshape(acc, (BM, BN))), (BM, BN))
    if ACROSS:
        tl.store(c + rn[None, :] * M + rm[:, None], acc.to(c.dtype.element_ty))
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


def product(a, b, *, BM=128, BN=128, BK=64, barriers=0, across=False, turned=0, num_stages=4, num_warps=8):
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((N, M) if across else (M, N), device=a.device, dtype=a.dtype)
    product_kernel[M // BM, N // BN](
        a, b, c, M, N, K, BM=BM, BN=BN, BK=BK, BARRIERS=barriers, ACROSS=across, TURNED=turned, num_stages=num_stages,
        num_warps=num_warps,
    )  # fmt: skip
    return c.t() if across else c


def _inputs(workload, device):
    def draw(*shape):
        if torch.device(device).type == "meta":
            return torch.empty(shape, dtype=torch.float16, device=device)
        return torch.randn(shape, device=device, generator=generator).to(torch.float16)

    generator = None
    if torch.device(device).type != "meta":
        generator = torch.Generator(device).manual_seed(workload.seed)
    m, n, k = (workload.dims[name] for name in "mnk")
    return {"a": draw(m, k), "b": draw(k, n)}


def _cost(workload, _direction):
    m, n, k = (workload.dims[name] for name in "mnk")
    return Cost(2 * m * n * k, 2 * (m * k + k * n), 2 * m * n, workload.dtype)


def _spec(name, size, fault, twin):
    """A kernel whose implementations are ``fault`` and ``twin``, with these settings of ``product``."""
    return KernelSpec(
        name=name, summary=name, dims=("m", "n", "k"),
        implementations={
            key: Implementation(lambda a, b, settings=settings: product(a, b, **settings))
            for key, settings in (("fault", fault), ("twin", twin))
        },
        reference=lambda a, b: a @ b, inputs=_inputs, cost=_cost, tolerance={"fp16": 2e-3},
        workloads=(Workload(dict(zip("mnk", size, strict=True)), "fp16", label="one"),),
    )  # fmt: skip


ODD = KernelSpec(
    name="odd", summary="odd", dims=("m", "n", "k"), implementations={"triton": Implementation(odd)},
    reference=lambda a, b: b, inputs=_inputs, cost=_cost, tolerance={"fp16": 2e-3},
    workloads=(Workload({"m": 16, "n": 16, "k": 16}, "fp16", label="one"),),
)  # fmt: skip
DESCRIBED = KernelSpec(
    name="described", summary="described", dims=("m", "n", "k"), implementations={"triton": Implementation(described)},
    reference=lambda a, b: a @ b, inputs=_inputs, cost=_cost, tolerance={"fp16": 2e-3},
    workloads=(Workload({"m": 2048, "n": 2048, "k": 2048}, "fp16", label="one"),),
)  # fmt: skip
ONE_STAGE = _spec("one_stage", (2048, 2048, 2048), {"num_stages": 1}, {})
EPILOGUE = _spec("epilogue", (2048, 2048, 512), {"across": True, "BM": 256}, {"BM": 256})
BARRIERS = _spec("barriers", (2048, 2048, 2048), {"barriers": 8}, {})
#: The rule that names each fault.
RULES = {"ONE_STAGE": "shallow-pipeline", "EPILOGUE": "epilogue-alone", "BARRIERS": "block-barriers"}
