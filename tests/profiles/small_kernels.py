"""Kernels small enough to reason about, with specs as a person would write them in a file of their own.

``softmax_kernel`` and ``mm_kernel`` are the two that ``fixtures/ncu`` was recorded with on an H200.
"""

import torch
import triton
import triton.language as tl
from tilescope_kernels.spec import DTYPES, Cost, Implementation, KernelSpec, Workload


@triton.jit
def softmax_kernel(x_ptr, y_ptr, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    m = offs < n
    x = tl.load(x_ptr + row * stride + offs, mask=m, other=-float("inf")).to(tl.float32)
    x = x - tl.max(x, 0)
    e = tl.exp(x)
    tl.store(y_ptr + row * stride + offs, (e / tl.sum(e, 0)).to(y_ptr.dtype.element_ty), mask=m)


@triton.jit
def mm_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # noqa: PLR0917
    pm = tl.program_id(0)
    pn = tl.program_id(1)
    rm = pm * BM + tl.arange(0, BM)
    rn = pn * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    ap = a + rm[:, None] * K + rk[None, :]
    bp = b + rk[:, None] * N + rn[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for _k in range(0, K, BK):
        acc += tl.dot(tl.load(ap), tl.load(bp))
        ap += BK
        bp += BK * N
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(c.dtype.element_ty))


@triton.jit
def scale(x, factor):
    return x * factor


@triton.autotune([triton.Config({"BLOCK": 1024}, num_warps=2), triton.Config({"BLOCK": 256})], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def scale_kernel(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr, EVEN: tl.constexpr = False):  # noqa: PLR0917
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(y_ptr + offs, scale(tl.load(x_ptr + offs, mask=mask), factor), mask=mask)


@triton.jit
def gather_kernel(index_ptr, x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    index = tl.load(index_ptr + offs, mask=mask, other=0)
    tl.store(y_ptr + offs, tl.load(x_ptr + index, mask=mask), mask=mask)


@triton.jit
def careless_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Reads past the end, and leaves the last element unwritten."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs), mask=offs < n)


@triton.jit
def ratio_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Divides zero by zero in the second program."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=1.0)
    below = tl.where(tl.program_id(0) == 1, 0.0, x * x)
    tl.store(y_ptr + offs, tl.where(tl.program_id(0) == 1, 0.0, x * x) / below, mask=offs < n)


@triton.jit
def asserted_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.device_assert(at < 8, "few lanes")
    tl.store(y_ptr + at, tl.load(x_ptr + at))


@triton.jit
def loop_kernel(x_ptr, y_ptr, rows, columns, BLOCK: tl.constexpr):
    """Column sums by a persistent program: bf16 in, an atomic out."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < columns
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for row in range(rows):
        total += tl.load(x_ptr + row.to(tl.int64) * columns + offs, mask=mask, other=0.0).to(tl.float32)
    tl.atomic_add(y_ptr + offs, total, mask=mask)


@triton.jit
def compact_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Where it writes depends on what it reads."""
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(y_ptr + offs, x, mask=(x > 0) & (offs < n))


def softmax(x):
    rows, columns = x.shape
    y = torch.empty_like(x)
    softmax_kernel[(rows,)](x, y, x.stride(0), columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
    return y


def matmul(a, b, config=None):
    config = config or {"BM": 128, "BN": 256, "BK": 64, "num_warps": 8, "num_stages": 3}
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    mm_kernel[(m // config["BM"], n // config["BN"])](a, b, c, m, n, k, **config)
    return c


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        y = torch.empty_like(x)
        scale_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, n=x.numel(), factor=factor)
        return y

    @staticmethod
    def backward(ctx, dy):
        dx = torch.empty_like(dy)
        scale_kernel[lambda meta: (triton.cdiv(dy.numel(), meta["BLOCK"]),)](dy, dx, n=dy.numel(), factor=ctx.factor)
        return dx, None


def times_three(x):
    return _Scale.apply(x, 3.0)


def wrong(x):
    return _Scale.apply(x, 2.5)


def gather(x, index):
    y = torch.empty(index.shape, dtype=x.dtype, device=x.device)
    gather_kernel[(triton.cdiv(index.numel(), 128),)](index, x, y, index.numel(), BLOCK=128)
    return y


def careless(x, written):
    y = torch.empty_like(x)
    careless_kernel[(triton.cdiv(x.numel(), 64),)](x, y, written, BLOCK=64)
    return y


def column_sums(x):
    rows, columns = x.shape
    y = torch.zeros(columns, device=x.device)
    loop_kernel[(triton.cdiv(columns, 128),)](x, y, rows, columns, BLOCK=128)
    return y.to(x.dtype)


def compact(x):
    y = torch.zeros_like(x)
    compact_kernel[(1,)](x, y, x.numel(), BLOCK=triton.next_power_of_2(x.numel()))
    return y


def _draw(shape, workload, device, requires_grad=False):
    dtype = getattr(torch, DTYPES[workload.dtype][0])
    if torch.device(device).type == "meta":
        return torch.empty(shape, dtype=dtype, device=device, requires_grad=requires_grad)
    generator = torch.Generator(device).manual_seed(workload.seed)
    return torch.randn(shape, dtype=dtype, device=device, generator=generator).requires_grad_(requires_grad)


def _no_cost(workload, direction):
    return Cost(0, 0, 0)


TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 2e-3}

SOFTMAX = KernelSpec(
    name="small_softmax", summary="The recorded softmax.", dims=("rows", "columns"),
    implementations={
        "triton": Implementation(softmax),
        "eager": Implementation(lambda x: torch.exp(x - x.amax(1, True)) / torch.exp(x - x.amax(1, True)).sum(1, True)),
    },
    reference=lambda x: torch.softmax(x, 1),
    inputs=lambda w, device: {"x": _draw((w.dims["rows"], w.dims["columns"]), w, device)},
    workloads=(Workload({"rows": 67, "columns": 781}, "fp32", label="ragged"),), cost=_no_cost, tolerance=TOLERANCE,
)  # fmt: skip

MATMUL = KernelSpec(
    name="small_matmul", summary="The recorded matmul.", dims=("m", "n", "k"),
    implementations={
        "triton": Implementation(matmul, configs=({"BM": 128, "BN": 256, "BK": 64, "num_warps": 8, "num_stages": 3},)),
        "eager": Implementation(lambda a, b: a @ b),
    },
    reference=lambda a, b: a @ b,
    inputs=lambda w, device: {
        "a": _draw((w.dims["m"], w.dims["k"]), w, device),
        "b": _draw((w.dims["k"], w.dims["n"]), w, device),
    },
    workloads=(Workload({"m": 128, "n": 256, "k": 128}, "bf16", label="small"),), cost=_no_cost, tolerance=TOLERANCE,
)  # fmt: skip


def _in_place(x):
    with torch.no_grad():
        return x.mul_(3)


TIMES = KernelSpec(
    name="times_three", summary="Scaling, autotuned, with a gradient.", dims=("n",),
    implementations={
        "triton": Implementation(times_three), "wrong": Implementation(wrong), "in_place": Implementation(_in_place),
        "picky": Implementation(lambda x: times_three(x) if x.sum().item() else x),
        "eager": Implementation(lambda x: x * 3), "compile": Implementation(lambda x: x * 3),
        "absent": Implementation(times_three, requires=("no-such-package",)),
    },
    reference=lambda x: x * 3, inputs=lambda w, device: {"x": _draw((w.dims["n"],), w, device, requires_grad=True)},
    workloads=(Workload({"n": 5000}, "fp32", label="small"),), cost=_no_cost, tolerance=TOLERANCE,
    passes=("forward", "backward"),
)  # fmt: skip


def _vector(name, implementations, reference, dims=("n",)):
    return KernelSpec(
        name=name, summary=name, dims=dims,
        implementations={key: Implementation(call) for key, call in implementations.items()}, reference=reference,
        inputs=lambda w, device: {"x": _draw(tuple(w.dims.values()), w, device)},
        workloads=(Workload(dict.fromkeys(dims, 64), "fp32", label="small"),), cost=_no_cost, tolerance=TOLERANCE,
    )  # fmt: skip


def ratio(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    ratio_kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
    return y


def asserted(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    asserted_kernel[(1,)](x, y, BLOCK=16)
    return y


def _ratio(x: torch.Tensor) -> torch.Tensor:
    zeroed = torch.where((torch.arange(x.numel(), device=x.device) // 64) == 1, 0.0, x * x)
    return zeroed / zeroed


RATIO = _vector("ratio", {"triton": ratio}, _ratio)
ASSERTED = _vector("asserted", {"triton": asserted}, lambda x: x)
UNGUARDED = _vector("unguarded", {"triton": ratio}, torch.ones_like)
CARELESS = _vector(
    "careless",
    {"unwritten": lambda x: careless(x, x.numel() - 1), "beyond": lambda x: careless(x, x.numel())},
    lambda x: x,
)
SUMS = _vector(
    "column_sums", {"triton": column_sums, "eager": lambda x: x.float().sum(0).to(x.dtype)}, lambda x: x.sum(0),
    ("rows", "columns"),
)  # fmt: skip
COMPACT = _vector("compact", {"triton": compact}, torch.relu)

GATHER = KernelSpec(
    name="gather", summary="Addresses that depend on data.", dims=("n",),
    implementations={"triton": Implementation(gather)}, reference=lambda x, index: x[index],
    inputs=lambda w, device: {"x": _draw((4 * w.dims["n"],), w, device), "index": torch.arange(0, 4 * w.dims["n"], 4)},
    workloads=(Workload({"n": 1000}, "fp32", label="small"),), cost=_no_cost, tolerance=TOLERANCE,
)  # fmt: skip


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr = 32):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)
