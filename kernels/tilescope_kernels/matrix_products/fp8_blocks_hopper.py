"""FP8 products with scales of 1x128 and 128x128 on Hopper, persistent and warp-specialized: one warp loads, three warpgroups multiply.

Tensor cores add up the 128 products that share scales; CUDA cores scale those sums and accumulate them in fp32. While one
warpgroup scales, the others keep the tensor cores busy. Written in Gluon, because Triton's language cannot assign work to
warps.
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

from tilescope_kernels._shared.launches import launch as start
from tilescope_kernels._shared.launching import capability, multiprocessors
from tilescope_kernels._shared.tile_order import tile_origin
from tilescope_kernels.matrix_products.hopper_pipeline import _STAGES, _advance
from tilescope_kernels.matrix_products.scaled_matmul import tma_serves
from tilescope_kernels.quantization.quantize_kernels import GROUP

#: Elements along K that share scales, the extent of a step, and columns that share a scale of b, the width of a tile.
_GROUP = gl.constexpr(GROUP)
#: Multiplying warpgroups, and rows of each, the M of a wgmma instruction: registers hold no more accumulators beside a product.
_GROUPS, _ROWS = gl.constexpr(3), gl.constexpr(64)
_BLOCK_M = gl.constexpr(_GROUPS.value * _ROWS.value)
#: Rows of tiles that are visited together, so that their operands stay in L2.
_GROUP_M = gl.constexpr(8)
#: Registers per thread of the multiplying warpgroups and of the loading warp.
_MULTIPLYING, _LOADING = gl.constexpr(160), gl.constexpr(24)


@gluon.jit
def _load(a_tiles, b_tiles, a_ring, b_ring, ready, free, M, N, K, tiles):
    """Producer warp: load operands as far ahead as the ring allows, those of the next tile during an epilogue."""
    slot = gl.to_tensor(0)
    # Every stage starts free: on a fresh mbarrier a wait for the previous phase returns at once.
    phase = gl.to_tensor(1)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        start_m, start_n = tile_origin(tile, M, N, _BLOCK_M, _GROUP, _GROUP_M)
        for k in range(0, K, _GROUP):
            arrived = ready.index(slot)
            mbarrier.wait(free.index(slot), phase)
            mbarrier.expect(arrived, (_BLOCK_M + _GROUP) * _GROUP)
            for i in gl.static_range(_GROUPS):
                place = a_ring.index(slot * _GROUPS + i)
                tma.async_copy_global_to_shared(a_tiles, [start_m + i * _ROWS, k], arrived, place)
            tma.async_copy_global_to_shared(b_tiles, [start_n, k], arrived, b_ring.index(slot))
            slot, phase = _advance(slot, phase)


@gluon.jit
def _multiply(
    WHICH: gl.constexpr, c_tiles, scale_a_ptr, scale_b_ptr, a_ring, b_ring, c_buffers, ready, free, M, N, K, tiles,
    scale_am, scale_ak, scale_bk, scale_bn,
):  # fmt: skip
    """Consumer warpgroup: multiply its 64 rows of this program's tiles. A step's scales are loaded a step ahead."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32])
    LINE: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    blocks = (K + _GROUP - 1) // _GROUP
    buffer = c_buffers.index(WHICH)
    slot = gl.to_tensor(0)
    phase = gl.to_tensor(0)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        start_m, start_n = tile_origin(tile, M, N, _BLOCK_M, _GROUP, _GROUP_M)
        start_m += WHICH * _ROWS
        m = start_m + gl.arange(0, _ROWS, layout=LINE)
        a_column = scale_a_ptr
        a_offset = m * scale_am
        b_row = scale_b_ptr + start_n // _GROUP * scale_bn
        # Load the scale of b for every row: a scalar would move to a uniform register, which waits for the load at once.
        b_offset = gl.zeros([_ROWS], gl.int32, LINE)
        scale_a = gl.load(a_column + a_offset, mask=m < M, other=0.0)
        scale_b = gl.load(b_row + b_offset, mask=m < M, other=0.0)
        total = gl.zeros([_ROWS, _GROUP], gl.float32, LAYOUT)
        for step in range(blocks):
            more = step + 1 < blocks
            a_column += scale_ak
            b_row += scale_bk
            mbarrier.wait(ready.index(slot), phase)
            nothing = gl.zeros([_ROWS, _GROUP], gl.float32, LAYOUT)
            a = a_ring.index(slot * _GROUPS + WHICH)
            b = b_ring.index(slot).permute([1, 0])
            part = warpgroup_mma(a, b, nothing, use_acc=False, is_async=True)
            part = warpgroup_mma_wait(0, deps=[part])
            mbarrier.arrive(free.index(slot), count=1)
            total += part * (scale_a * scale_b)[:, None]
            scale_a = gl.load(a_column + a_offset, mask=(m < M) & more, other=0.0)
            scale_b = gl.load(b_row + b_offset, mask=(m < M) & more, other=0.0)
            slot, phase = _advance(slot, phase)
        # Wait until the previous tile has left the buffer. TMA clips at the edges.
        tma.store_wait(0)
        buffer.store(total.to(c_tiles.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(c_tiles, [start_m, start_n], buffer)
    tma.store_wait(0)


# Specialized on extents of 1, ptxas crashed with a segmentation fault in another kernel (sm_90, CUDA 12.8).
@gluon.jit(do_not_specialize=["M", "N", "K"])
def fp8_matmul_blocks_hopper_kernel(
    a_tiles, b_tiles, c_tiles, scale_a_ptr, scale_b_ptr, M, N, K, scale_am, scale_ak, scale_bk, scale_bn
):  # fmt: skip
    """Compute tiles ``program, program + programs, ...`` of 192x128, 64 rows per warpgroup. Launch with 4 warps.

    Descriptors have tiles of 64x128 for a and c and 128x128 for b. Scales are as in ``fp8_matmul_blocks_kernel``.
    """
    tiles = ((M + _BLOCK_M - 1) // _BLOCK_M) * ((N + _GROUP - 1) // _GROUP)
    a_ring = gl.allocate_shared_memory(a_tiles.dtype, [_STAGES * _GROUPS, _ROWS, _GROUP], a_tiles.layout)
    b_ring = gl.allocate_shared_memory(b_tiles.dtype, [_STAGES, _GROUP, _GROUP], b_tiles.layout)
    c_buffers = gl.allocate_shared_memory(c_tiles.dtype, [_GROUPS, _ROWS, _GROUP], c_tiles.layout)
    # ``ready``: a stage has arrived. ``free``: every warpgroup has used it.
    ready = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(_STAGES):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(free.index(i), count=_GROUPS)
    fence_async_shared()
    given = (
        c_tiles, scale_a_ptr, scale_b_ptr, a_ring, b_ring, c_buffers, ready, free, M, N, K, tiles,
        scale_am, scale_ak, scale_bk, scale_bn,
    )  # fmt: skip
    # Triton does not support (0, *given).
    gl.warp_specialize(
        [
            (_multiply, (0,) + given),  # noqa: RUF005
            (_multiply, (1,) + given),  # noqa: RUF005
            (_multiply, (2,) + given),  # noqa: RUF005
            (_load, (a_tiles, b_tiles, a_ring, b_ring, ready, free, M, N, K, tiles)),
        ],
        [4, 4, 1],
        [_MULTIPLYING, _MULTIPLYING, _LOADING],
    )


def _count(c: torch.Tensor) -> int:
    return triton.cdiv(c.shape[0], _BLOCK_M.value) * triton.cdiv(c.shape[1], GROUP)


def serves(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> bool:
    """Whether the kernel can compute ``c`` from ``a`` and ``b`` (N, K), and is estimated to be faster than the Triton kernel.

    At least half of the SMs must get a tile. A wave of its tiles takes 5/8 of one of the Triton kernel with two 128x128 tiles
    per SM. On an H200 (2026-11-26, torch 2.11, triton 3.6, cold L2; Triton kernel, cuBLAS): 1536x1536x1536 12.1 us (15.4, 14.1),
    2048x2048x2048 24.3 (22.4, 17.4), 1024x4096x4096 42.5 (36.8, 29.1), 3072x3072x3072 52.0 (71.2, 54.9), 4096x4096x4096 124 (134,
    114). With two warpgroups 2048x2048x2048 took 23.5, 4096x4096x4096 132.
    """
    programs = multiprocessors(a)
    pairs = triton.cdiv(triton.cdiv(c.shape[0], 128) * triton.cdiv(c.shape[1], 128), 2 * programs)
    return (
        capability(a) == 90
        and c.dtype in (torch.bfloat16, torch.float16)
        and 0 not in (*c.shape, a.shape[1])
        and tma_serves(a, b, c)
        and 2 * _count(c) >= programs
        and 5 * triton.cdiv(_count(c), programs) <= 8 * pairs
    )


def _tiles(tensor: torch.Tensor, rows: int) -> TensorDescriptor:
    """TMA descriptor with (rows, 128) tiles. The column stride is set to 1: PyTorch gives a single column any stride."""
    dtype = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}.get(tensor.dtype, gl.float8e4nv)
    layout = gl.NVMMASharedLayout.get_default_for([rows, GROUP], dtype)
    return TensorDescriptor(tensor, list(tensor.shape), [tensor.stride(0), 1], [rows, GROUP], layout)


def launch(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> None:
    """Write ``c`` for operands that ``serves`` accepts. Scales have any strides."""
    start(
        fp8_matmul_blocks_hopper_kernel, (min(_count(c), multiprocessors(a)),),
        _tiles(a, _ROWS.value), _tiles(b, GROUP), _tiles(c, _ROWS.value), scale_a, scale_b, *c.shape, a.shape[1],
        *scale_a.stride(), *scale_b.stride(), num_warps=4,
    )  # fmt: skip
