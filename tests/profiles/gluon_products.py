"""A sum of products in Gluon whose accumulator is halved before or after the last product has ended: ptxas serializes the former."""

import torch
from tilescope_kernels.spec import Cost, Implementation, KernelSpec, Workload
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

_SIZE = gl.constexpr(64)


@gluon.jit
def products(a_ptr, b_ptr, c_ptr, steps, UNDER_WAY: gl.constexpr):
    """``steps`` products of (64, 64) tiles added up, the sum halved after each: the left ones from registers, one right one."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _SIZE, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 2)
    TILE: gl.constexpr = gl.NVMMASharedLayout(128, 16)
    rows = gl.arange(0, _SIZE, layout=gl.SliceLayout(1, LAYOUT))[:, None] * _SIZE
    place = rows + gl.arange(0, _SIZE, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    right = gl.allocate_shared_memory(b_ptr.dtype.element_ty, [_SIZE, _SIZE], TILE, gl.load(b_ptr + place))
    fence_async_shared()
    k = gl.arange(0, _SIZE, layout=gl.SliceLayout(0, LEFT))[None, :]
    left = gl.arange(0, _SIZE, layout=gl.SliceLayout(1, LEFT))[:, None] * _SIZE + k
    total = gl.zeros([_SIZE, _SIZE], gl.float32, LAYOUT)
    for step in range(steps):
        a = gl.load(a_ptr + step * _SIZE * _SIZE + left)
        total = warpgroup_mma(a, right, total, is_async=True)
        total = warpgroup_mma_wait(UNDER_WAY, deps=[total]) * 0.5
    total = warpgroup_mma_wait(0, deps=[total])
    gl.store(c_ptr + place, total)


def _call(under_way):
    def call(a, b):
        c = torch.empty(b.shape, dtype=torch.float32, device=b.device)
        products[(1,)](a, b, c, a.shape[0], UNDER_WAY=under_way, num_warps=4)
        return c

    return call


def inputs(workload, device):
    """``a`` (steps, 64, 64) and ``b`` (64, 64)."""
    a = torch.empty((workload.dims["steps"], 64, 64), dtype=torch.bfloat16, device=device)
    return {"a": a, "b": torch.empty((64, 64), dtype=torch.bfloat16, device=device)}


def reference(a, b):
    """The sum in fp32, halved after each product."""
    halves = 0.5 ** torch.arange(a.shape[0], 0, -1, device=a.device)
    return (halves[:, None, None] * (a.float() @ b.float())).sum(0)


def cost(workload, direction):
    """Every tile once."""
    steps = workload.dims["steps"]
    return Cost(flops=2 * steps * 64**3, bytes_read=(steps + 1) * 64 * 64 * 2, bytes_written=64 * 64 * 4, pipe="bf16")


SPEC = KernelSpec(
    name="products", summary="A sum of products of tiles", dims=("steps",),
    implementations={
        "triton": Implementation(_call(0), "halved once its product was waited for"),
        "under_way": Implementation(_call(1), "halved while its product is under way"),
    },
    reference=reference, inputs=inputs, workloads=(Workload({"steps": 8}, "bf16", label="small"),), cost=cost,
    tolerance={"bf16": 1e-2},
)  # fmt: skip
