"""FP8 products with scales of 1x128 and 128x128 on Hopper, persistent and warp-specialized: one warp loads, two or three warpgroups multiply.

Tensor cores add up the 128 products that share scales; CUDA cores scale those sums and accumulate them in fp32. While one warpgroup scales,
the others keep the tensor cores busy. Written in Gluon, because Triton's language cannot assign work to warps.

Two warpgroups have registers for the products of two steps each: the first are scaled during the second. Three read a sixth
less from L2 per product. With 128 rows per warpgroup, half of them at a time, registers spill.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tilescope_kernels._shared.descriptors import gluon_tiles
from tilescope_kernels._shared.launching import cdiv, gluon_capability, multiprocessors
from tilescope_kernels._shared.launching import launch as start
from tilescope_kernels._shared.tile_order import tile_origin
from tilescope_kernels.matrix_products.hopper_store import advance
from tilescope_kernels.matrix_products.scaled_matmul import tma_serves
from tilescope_kernels.quantization.quantize_kernels import GROUP

#: Elements along K that share scales, the extent of a step, and columns that share a scale of b, the width of a tile.
_GROUP = gl.constexpr(GROUP)
#: Stages of the ring.
_STAGES = gl.constexpr(4)
#: Rows of a warpgroup, the M of a wgmma instruction: registers hold no more accumulators beside a product.
_ROWS = gl.constexpr(64)
#: Rows of a group of tiles that are visited together, so that their operands stay in L2.
_TOGETHER = gl.constexpr(1536)
#: Registers per thread of two and of three multiplying warpgroups, and of the loading warp.
_OF_TWO, _OF_THREE, _LOADING = gl.constexpr(232), gl.constexpr(160), gl.constexpr(24)


@gluon.jit
def _load(a_tiles, b_tiles, a_ring, b_ring, ready, free, M, N, K, tiles, GROUPS: gl.constexpr):
    """Producer warp: load operands as far ahead as the ring allows, those of the next tile during an epilogue."""
    slot = gl.to_tensor(0)
    # Every stage starts free: on a fresh mbarrier a wait for the previous phase returns at once.
    phase = gl.to_tensor(1)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        start_m, start_n = tile_origin(tile, M, N, GROUPS * _ROWS, _GROUP, _TOGETHER // (GROUPS * _ROWS))
        for k in range(0, K, _GROUP):
            arrived = ready.index(slot)
            mbarrier.wait(free.index(slot), phase)
            mbarrier.expect(arrived, (GROUPS * _ROWS + _GROUP) * _GROUP)
            for i in gl.static_range(GROUPS):
                place = a_ring.index(slot * GROUPS + i)
                tma.async_copy_global_to_shared(a_tiles, [start_m + i * _ROWS, k], arrived, place)
            tma.async_copy_global_to_shared(b_tiles, [start_n, k], arrived, b_ring.index(slot))
            slot, phase = advance(slot, phase, _STAGES)


@gluon.jit
def _product(WHICH: gl.constexpr, a_ring, b_ring, ready, slot, phase, GROUPS: gl.constexpr, LAYOUT: gl.constexpr):
    """Wait for a step's operands and begin this warpgroup's products."""
    mbarrier.wait(ready.index(slot), phase)
    nothing = gl.zeros([_ROWS, _GROUP], gl.float32, LAYOUT)
    a = a_ring.index(slot * GROUPS + WHICH)
    b = b_ring.index(slot).permute([1, 0])
    return warpgroup_mma(a, b, nothing, use_acc=False, is_async=True)


@gluon.jit
def _scales(a_column, b_row, a_offset, b_offset, mask):
    """A step's scales of a and b, one of each per row."""
    return gl.load(a_column + a_offset, mask=mask, other=0.0), gl.load(b_row + b_offset, mask=mask, other=0.0)


@gluon.jit
def _multiply(
    WHICH: gl.constexpr, c_tiles, scale_a_ptr, scale_b_ptr, a_ring, b_ring, c_buffers, ready, free, M, N, K, tiles,
    scale_am, scale_ak, scale_bk, scale_bn, GROUPS: gl.constexpr,
):  # fmt: skip
    """Consumer warpgroup: multiply its 64 rows of this program's tiles. Scales are loaded as many steps ahead as are multiplied at once."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32])
    LINE: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    blocks = (K + _GROUP - 1) // _GROUP
    buffer = c_buffers.index(WHICH)
    slot = gl.to_tensor(0)
    phase = gl.to_tensor(0)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        start_m, start_n = tile_origin(tile, M, N, GROUPS * _ROWS, _GROUP, _TOGETHER // (GROUPS * _ROWS))
        start_m += WHICH * _ROWS
        m = start_m + gl.arange(0, _ROWS, layout=LINE)
        a_column = scale_a_ptr
        a_offset = m * scale_am
        b_row = scale_b_ptr + start_n // _GROUP * scale_bn
        # Load the scale of b for every row: a scalar would move to a uniform register, which waits for the load at once.
        b_offset = gl.zeros([_ROWS], gl.int32, LINE)
        scale_a, scale_b = _scales(a_column, b_row, a_offset, b_offset, m < M)
        total = gl.zeros([_ROWS, _GROUP], gl.float32, LAYOUT)
        paired = blocks // 2 * 2 if GROUPS == 2 else 0
        if GROUPS == 2:
            second_a, second_b = _scales(
                a_column + scale_ak, b_row + scale_bk, a_offset, b_offset, (m < M) & (blocks > 1)
            )
            for step in range(2, paired + 2, 2):
                a_column += 2 * scale_ak
                b_row += 2 * scale_bk
                part = _product(WHICH, a_ring, b_ring, ready, slot, phase, GROUPS, LAYOUT)
                after, after_phase = advance(slot, phase, _STAGES)
                second = _product(WHICH, a_ring, b_ring, ready, after, after_phase, GROUPS, LAYOUT)
                part, second = warpgroup_mma_wait(1, deps=[part, second])
                mbarrier.arrive(free.index(slot), count=1)
                total += part * (scale_a * scale_b)[:, None]
                scale_a, scale_b = _scales(a_column, b_row, a_offset, b_offset, (m < M) & (step < blocks))
                second = warpgroup_mma_wait(0, deps=[second])
                mbarrier.arrive(free.index(after), count=1)
                total += second * (second_a * second_b)[:, None]
                second_a, second_b = _scales(
                    a_column + scale_ak, b_row + scale_bk, a_offset, b_offset, (m < M) & (step + 1 < blocks)
                )
                slot, phase = advance(after, after_phase, _STAGES)
        for step in range(paired, blocks):
            a_column += scale_ak
            b_row += scale_bk
            part = _product(WHICH, a_ring, b_ring, ready, slot, phase, GROUPS, LAYOUT)
            part = warpgroup_mma_wait(0, deps=[part])
            mbarrier.arrive(free.index(slot), count=1)
            total += part * (scale_a * scale_b)[:, None]
            scale_a, scale_b = _scales(a_column, b_row, a_offset, b_offset, (m < M) & (step + 1 < blocks))
            slot, phase = advance(slot, phase, _STAGES)
        # Wait until the previous tile has left the buffer. TMA clips at the edges.
        tma.store_wait(0)
        buffer.store(total.to(c_tiles.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(c_tiles, [start_m, start_n], buffer)
    tma.store_wait(0)


# Specialized on extents of 1, ptxas crashed with a segmentation fault in another kernel (sm_90, CUDA 12.8).
@gluon.jit(do_not_specialize=["M", "N", "K"])
def fp8_matmul_blocks_hopper_kernel(
    a_tiles, b_tiles, c_tiles, scale_a_ptr, scale_b_ptr, M, N, K, scale_am, scale_ak, scale_bk, scale_bn, GROUPS: gl.constexpr,
):  # fmt: skip
    """Compute tiles ``program, program + programs, ...``, 128 columns wide, of 64 rows for each of ``GROUPS`` warpgroups. Launch with 4 warps.

    Descriptors have tiles of 64x128 for a and c and 128x128 for b. Scales are as in ``fp8_matmul_blocks_kernel``.
    """
    BLOCK_M: gl.constexpr = GROUPS * _ROWS
    tiles = ((M + BLOCK_M - 1) // BLOCK_M) * ((N + _GROUP - 1) // _GROUP)
    a_ring = gl.allocate_shared_memory(a_tiles.dtype, [_STAGES * GROUPS, _ROWS, _GROUP], a_tiles.layout)
    b_ring = gl.allocate_shared_memory(b_tiles.dtype, [_STAGES, _GROUP, _GROUP], b_tiles.layout)
    c_buffers = gl.allocate_shared_memory(c_tiles.dtype, [GROUPS, _ROWS, _GROUP], c_tiles.layout)
    # ``ready``: a stage has arrived. ``free``: every warpgroup has used it.
    ready = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(_STAGES):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(free.index(i), count=GROUPS)
    fence_async_shared()
    # Written out, because constants in a tuple that a variable holds are no longer constexpr.
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_multiply, (0, c_tiles, scale_a_ptr, scale_b_ptr, a_ring, b_ring, c_buffers, ready, free, M, N, K, tiles,
                             scale_am, scale_ak, scale_bk, scale_bn, GROUPS)),
                (_multiply, (1, c_tiles, scale_a_ptr, scale_b_ptr, a_ring, b_ring, c_buffers, ready, free, M, N, K, tiles,
                             scale_am, scale_ak, scale_bk, scale_bn, GROUPS)),
                (_load, (a_tiles, b_tiles, a_ring, b_ring, ready, free, M, N, K, tiles, GROUPS)),
            ],
            [4, 1],
            [_OF_TWO, _LOADING],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (0, c_tiles, scale_a_ptr, scale_b_ptr, a_ring, b_ring, c_buffers, ready, free, M, N, K, tiles,
                             scale_am, scale_ak, scale_bk, scale_bn, GROUPS)),
                (_multiply, (1, c_tiles, scale_a_ptr, scale_b_ptr, a_ring, b_ring, c_buffers, ready, free, M, N, K, tiles,
                             scale_am, scale_ak, scale_bk, scale_bn, GROUPS)),
                (_multiply, (2, c_tiles, scale_a_ptr, scale_b_ptr, a_ring, b_ring, c_buffers, ready, free, M, N, K, tiles,
                             scale_am, scale_ak, scale_bk, scale_bn, GROUPS)),
                (_load, (a_tiles, b_tiles, a_ring, b_ring, ready, free, M, N, K, tiles, GROUPS)),
            ],
            [4, 4, 1],
            [_OF_THREE, _OF_THREE, _LOADING],
        )  # fmt: skip


def _count(m: int, n: int, groups: int) -> int:
    """Number of tiles."""
    return cdiv(m, groups * _ROWS.value) * cdiv(n, GROUP)


def groups(m: int, n: int, programs: int) -> int:
    """The number of multiplying warpgroups that is estimated to be faster: a wave takes 1.4 times as long with three as with two."""
    two, three = (cdiv(_count(m, n, each), programs) for each in (2, 3))
    return 3 if 7 * three <= 5 * two else 2


def serves(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> bool:
    """Whether the kernel can compute ``c`` from ``a`` and ``b`` (N, K), and gives a fifth of the SMs a tile.

    Up to 64 rows half of its tiles are empty, which pays in one wave only.
    """
    tiles, programs = _count(*c.shape, 2), multiprocessors(a)
    return (
        gluon_capability(a) == 90
        and c.dtype in (torch.bfloat16, torch.float16)
        and 0 not in (*c.shape, a.shape[1])
        and tma_serves(a, b, c)
        and 5 * tiles >= programs
        and (c.shape[0] > 64 or tiles <= programs)
    )


def launch(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, chosen: int | None = None
) -> None:  # fmt: skip
    """Write ``c`` for operands that ``serves`` accepts, with ``chosen`` or ``groups`` warpgroups. Scales have any strides."""
    (m, n), programs = c.shape, multiprocessors(a)
    chosen = chosen or groups(m, n, programs)
    start(
        fp8_matmul_blocks_hopper_kernel, (min(_count(m, n, chosen), programs),),
        *(gluon_tiles(each, rows, GROUP).of(each) for each, rows in ((a, _ROWS.value), (b, GROUP), (c, _ROWS.value))), scale_a, scale_b, m, n, a.shape[1],
        *scale_a.stride(), *scale_b.stride(), GROUPS=chosen, num_warps=4,
    )  # fmt: skip
