"""Products of 16-bit rows and INT8 weights on Hopper: one warp loads, two warpgroups convert and multiply.

While one warpgroup converts its weights, the products of the other keep the tensor cores busy. The kernel is in Gluon: in
Triton's language every warp waits for the same loads, so all convert at once and the tensor cores wait.
"""

from __future__ import annotations

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tilescope_kernels._shared.launching import capability, device_of, multiprocessors
from tilescope_kernels._shared.tile_order import tile_origin
from tilescope_kernels.matrix_products.hopper_pipeline import _STAGES, _advance
from tilescope_kernels.matrix_products.scaled_matmul import tma_serves

#: Groups of warps that multiply, and the weights' rows of each, a tensor core instruction's.
_GROUPS, _ROWS = gl.constexpr(2), gl.constexpr(64)
_BLOCK_N = gl.constexpr(_GROUPS.value * _ROWS.value)
#: Rows of x in a tile: an instruction's, so that a converted weight is used as often as can be.
_BLOCK_M = gl.constexpr(256)
#: A step along K: 128 bytes of x.
_BLOCK_K = gl.constexpr(64)
#: Rows of tiles that are walked together: L2 still has their operands.
_GROUP_N = gl.constexpr(16)
#: Registers of a thread that multiplies and of one that loads.
_MULTIPLYING, _LOADING = gl.constexpr(232), gl.constexpr(24)


@gluon.jit
def _load(x_tiles, weight_tiles, x_ring, weight_ring, ready, free, M, N, K, tiles):
    """Load the operands of this program's tiles as far ahead as the ring allows, the next tile's during an epilogue."""
    slot = gl.to_tensor(0)
    # A barrier's first wait for what has not been used yet must not wait: it asks for the phase before.
    phase = gl.to_tensor(1)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        start_n, start_m = tile_origin(tile, N, M, _BLOCK_N, _BLOCK_M, _GROUP_N)
        for k in range(0, K, _BLOCK_K):
            arrived = ready.index(slot)
            mbarrier.wait(free.index(slot), phase)
            mbarrier.expect(arrived, (2 * _BLOCK_M + _BLOCK_N) * _BLOCK_K)
            tma.async_copy_global_to_shared(x_tiles, [start_m, k], arrived, x_ring.index(slot))
            for i in gl.static_range(_GROUPS):
                place = weight_ring.index(slot * _GROUPS + i)
                tma.async_copy_global_to_shared(weight_tiles, [start_n + i * _ROWS, k], arrived, place)
            slot, phase = _advance(slot, phase)


@gluon.jit
def _multiply(
    WHICH: gl.constexpr, y_tiles, scale_ptr, x_ring, weight_ring, y_buffers, ready, free, M, N, K, tiles
):  # fmt: skip
    """Multiply this warpgroup's 64 rows of weights. A step's weights are converted while the step before multiplies."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _BLOCK_M, 16])
    CONVERTED: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 2)
    LINE: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    steps = (K + _BLOCK_K - 1) // _BLOCK_K
    buffer = y_buffers.index(WHICH)
    slot = gl.to_tensor(0)
    phase = gl.to_tensor(0)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        start_n, start_m = tile_origin(tile, N, M, _BLOCK_N, _BLOCK_M, _GROUP_N)
        start_n += WHICH * _ROWS
        n = start_n + gl.arange(0, _ROWS, layout=LINE)
        scale = gl.load(scale_ptr + n, mask=n < N, other=0.0)
        total = gl.zeros([_ROWS, _BLOCK_M], gl.float32, LAYOUT)
        mbarrier.wait(ready.index(slot), phase)
        weight = weight_ring.index(slot * _GROUPS + WHICH).load(CONVERTED).to(x_ring.dtype)
        for _ in range(steps - 1):
            part = warpgroup_mma(weight, x_ring.index(slot).permute([1, 0]), total, is_async=True)
            used = free.index(slot)
            slot, phase = _advance(slot, phase)
            mbarrier.wait(ready.index(slot), phase)
            following = weight_ring.index(slot * _GROUPS + WHICH).load(CONVERTED).to(x_ring.dtype)
            total = warpgroup_mma_wait(0, deps=[part])
            mbarrier.arrive(used, count=1)
            weight = following
        part = warpgroup_mma(weight, x_ring.index(slot).permute([1, 0]), total, is_async=True)
        total = warpgroup_mma_wait(0, deps=[part])
        mbarrier.arrive(free.index(slot), count=1)
        slot, phase = _advance(slot, phase)
        # Once the tile before has left the buffer. The descriptor leaves out what is past the edges.
        tma.store_wait(0)
        buffer.permute([1, 0]).store((total * scale[:, None]).to(y_tiles.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(y_tiles, [start_m, start_n], buffer)
    tma.store_wait(0)


# Extents of 1 for constants have made ptxas die of a segmentation fault in another kernel (sm_90, CUDA 12.8).
@gluon.jit(do_not_specialize=["M", "N", "K"])
def w8a16_matmul_hopper_kernel(x_tiles, weight_tiles, y_tiles, scale_ptr, M, N, K):
    """Tiles ``program, program + programs, ...`` of 256 rows of x and 128 of weights, 64 a group. Launched with 4 warps.

    Descriptors are of 256x64 of x and y and 64x64 of weights.
    """
    tiles = ((M + _BLOCK_M - 1) // _BLOCK_M) * ((N + _BLOCK_N - 1) // _BLOCK_N)
    x_ring = gl.allocate_shared_memory(x_tiles.dtype, [_STAGES, _BLOCK_M, _BLOCK_K], x_tiles.layout)
    weight_ring = gl.allocate_shared_memory(gl.int8, [_STAGES * _GROUPS, _ROWS, _BLOCK_K], weight_tiles.layout)
    y_buffers = gl.allocate_shared_memory(y_tiles.dtype, [_GROUPS, _BLOCK_M, _ROWS], y_tiles.layout)
    # That a stage has come, and that every group has used it.
    ready = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(_STAGES):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(free.index(i), count=_GROUPS)
    fence_async_shared()
    given = (y_tiles, scale_ptr, x_ring, weight_ring, y_buffers, ready, free, M, N, K, tiles)
    # Triton takes no *given.
    gl.warp_specialize(
        [
            (_multiply, (0,) + given),  # noqa: RUF005
            (_multiply, (1,) + given),  # noqa: RUF005
            (_load, (x_tiles, weight_tiles, x_ring, weight_ring, ready, free, M, N, K, tiles)),
        ],
        [4, 1],
        [_MULTIPLYING, _LOADING],
    )


def _count(y: torch.Tensor) -> int:
    return triton.cdiv(y.shape[0], _BLOCK_M.value) * triton.cdiv(y.shape[1], _BLOCK_N.value)


def serves(x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether the kernel can compute ``y`` of ``x`` and ``weight``, and has a tile for every SM."""
    return (
        capability(x) == 90
        and y.dtype in (torch.bfloat16, torch.float16)
        and 0 not in (*y.shape, x.shape[1])
        and tma_serves(x, weight, y)
        and _count(y) >= multiprocessors(x)
    )


def _tiles(tensor: torch.Tensor, rows: int) -> TensorDescriptor:
    """A descriptor of (rows, 64) tiles. The column stride is taken to be 1: PyTorch gives a single column any stride."""
    dtype = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.int8: gl.int8}[tensor.dtype]
    columns = _BLOCK_K.value
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], dtype)
    return TensorDescriptor(tensor, list(tensor.shape), [tensor.stride(0), 1], [rows, columns], layout)


def launch(x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> None:
    """Write ``y`` for operands that ``serves`` accepts."""
    with device_of(x):
        w8a16_matmul_hopper_kernel[(min(_count(y), multiprocessors(x)),)](
            _tiles(x, _BLOCK_M.value), _tiles(weight, _ROWS.value), _tiles(y, _BLOCK_M.value), scale, *y.shape, x.shape[1],
            num_warps=4,
        )  # fmt: skip
