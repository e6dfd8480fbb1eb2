"""Large 16-bit matrix products on Hopper: one warp loads and two warpgroups multiply.

A warpgroup has half of a tile's rows. The second one runs two steps behind the first, so that one of them keeps the tensor
cores busy while the other writes its half. The kernel is in Gluon, because Triton's language does not assign work to warps.
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

#: Groups of warps that multiply, and the rows of each, a tensor core instruction's.
_GROUPS, _ROWS = gl.constexpr(2), gl.constexpr(64)
_BLOCK_M = gl.constexpr(_GROUPS.value * _ROWS.value)
#: Columns of a tile that leave at a time: 128 bytes.
_PART = gl.constexpr(64)
#: A step along K: 128 bytes.
_BLOCK_K = gl.constexpr(64)
#: Registers of a thread that multiplies and of one that loads.
_MULTIPLYING, _LOADING = gl.constexpr(232), gl.constexpr(24)


@gluon.jit
def _advance(slot, phase, STAGES: gl.constexpr):
    slot += 1
    wrapped = slot == STAGES
    return gl.where(wrapped, 0, slot), gl.where(wrapped, phase ^ 1, phase)


@gluon.jit
def _load(
    a_tiles, b_tiles, a_ring, b_ring, ready, free, M, N, K, tiles,
    A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Load the operands of this program's tiles as far ahead as the ring allows, the next tile's during an epilogue."""
    slot = gl.to_tensor(0)
    # A barrier's first wait for what has not been used yet must not wait: it asks for the phase before.
    phase = gl.to_tensor(1)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        start_m, start_n = tile_origin(tile, M, N, _BLOCK_M, BLOCK_N, GROUP_M)
        for k in range(0, K, _BLOCK_K):
            arrived = ready.index(slot)
            for i in gl.static_range(_GROUPS):
                mbarrier.wait(free.index(slot * _GROUPS + i), phase)
            mbarrier.expect(arrived, 2 * (_BLOCK_M + BLOCK_N) * _BLOCK_K)
            for i in gl.static_range(_GROUPS):
                place = a_ring.index(slot * _GROUPS + i)
                if A_COLUMNS:
                    tma.async_copy_global_to_shared(a_tiles, [k, start_m + i * _ROWS], arrived, place)
                else:
                    tma.async_copy_global_to_shared(a_tiles, [start_m + i * _ROWS, k], arrived, place)
            if B_COLUMNS:
                tma.async_copy_global_to_shared(b_tiles, [start_n, k], arrived, b_ring.index(slot))
            else:
                tma.async_copy_global_to_shared(b_tiles, [k, start_n], arrived, b_ring.index(slot))
            slot, phase = _advance(slot, phase, STAGES)


@gluon.jit
def _store(
    WHICH: gl.constexpr, total, c_tiles, c_ptr, stride_cm, buffers, start_m, start_n, M, N, TMA: gl.constexpr
):  # fmt: skip
    """Write this warpgroup's rows by way of two buffers, each 64 columns wide, which it has for itself."""
    MULTIPLIED: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _PART, 16])
    ROWS: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    columns: gl.constexpr = total.shape[1]
    left, right = total.to(c_ptr.dtype.element_ty).reshape(_ROWS, 2, columns // 2).permute(0, 2, 1).split()
    parts = (left, right)
    if columns == 4 * _PART:
        first, second = left.reshape(_ROWS, 2, _PART).permute(0, 2, 1).split()
        third, fourth = right.reshape(_ROWS, 2, _PART).permute(0, 2, 1).split()
        parts = (first, second, third, fourth)
    m = start_m + gl.arange(0, _ROWS, layout=gl.SliceLayout(1, ROWS))[:, None]
    for i in gl.static_range(columns // _PART):
        buffer = buffers.index(WHICH * 2 + i % 2)
        if TMA:
            # Once what was in the buffer has left. The descriptor leaves out what is past the edges.
            tma.store_wait(1)
            buffer.store(gl.convert_layout(parts[i], MULTIPLIED))
            fence_async_shared()
            tma.async_copy_shared_to_global(c_tiles, [start_m, start_n + i * _PART], buffer)
        else:
            buffer.store(gl.convert_layout(parts[i], MULTIPLIED))
            n = start_n + i * _PART + gl.arange(0, _PART, layout=gl.SliceLayout(0, ROWS))[None, :]
            gl.store(c_ptr + m.to(gl.int64) * stride_cm + n, buffer.load(ROWS), mask=(m < M) & (n < N))


@gluon.jit
def _multiply(
    WHICH: gl.constexpr, c_tiles, c_ptr, stride_cm, a_ring, b_ring, buffers, ready, free, M, N, K, tiles,
    A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr,
    STAGES: gl.constexpr, LAG: gl.constexpr, TMA: gl.constexpr,
):  # fmt: skip
    """Multiply this warpgroup's 64 rows of this program's tiles."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    steps = (K + _BLOCK_K - 1) // _BLOCK_K
    slot = gl.to_tensor(0)
    phase = gl.to_tensor(0)
    if LAG > 0 and WHICH == 1:
        # The other group's first use of that slot: it does not come to a second one before this group's first.
        mbarrier.wait(free.index((LAG - 1) * _GROUPS), 0, pred=(steps >= LAG) & (gl.program_id(0) < tiles))
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        start_m, start_n = tile_origin(tile, M, N, _BLOCK_M, BLOCK_N, GROUP_M)
        start_m += WHICH * _ROWS
        total = gl.zeros([_ROWS, BLOCK_N], gl.float32, LAYOUT)
        # Not `slot`: what has the value of another variable before a loop, Triton does not carry from step to step.
        used = gl.to_tensor(0)
        for step in range(steps):
            mbarrier.wait(ready.index(slot), phase)
            a = a_ring.index(slot * _GROUPS + WHICH)
            b = b_ring.index(slot)
            if A_COLUMNS:
                a = a.permute([1, 0])
            if B_COLUMNS:
                b = b.permute([1, 0])
            total = warpgroup_mma(a, b, total, is_async=True)
            # The product of the step before is finished once only this one is under way.
            total = warpgroup_mma_wait(1, deps=[total])
            mbarrier.arrive(free.index(used * _GROUPS + WHICH), count=1, pred=step > 0)
            used = slot
            slot, phase = _advance(slot, phase, STAGES)
        total = warpgroup_mma_wait(0, deps=[total])
        mbarrier.arrive(free.index(used * _GROUPS + WHICH), count=1)
        _store(WHICH, total, c_tiles, c_ptr, stride_cm, buffers, start_m, start_n, M, N, TMA)
    if TMA:
        tma.store_wait(0)


# Extents of 1 for constants have made ptxas die of a segmentation fault in another kernel (sm_90, CUDA 12.8).
@gluon.jit(do_not_specialize=["M", "N", "K", "stride_cm"])
def matmul_hopper_kernel(
    a_tiles, b_tiles, c_tiles, c_ptr, stride_cm, M, N, K,
    A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr,
    STAGES: gl.constexpr, LAG: gl.constexpr, TMA: gl.constexpr,
):  # fmt: skip
    """Tiles ``program, program + programs, ...`` of 128x256, 64 rows a group. Launched with 4 warps.

    Descriptors are of 64x64 of a and c and 64x256 of b, or of 256x64 where ``B_COLUMNS`` says that b is column-major.
    """
    tiles = ((M + _BLOCK_M - 1) // _BLOCK_M) * ((N + BLOCK_N - 1) // BLOCK_N)
    a_ring = gl.allocate_shared_memory(a_tiles.dtype, [STAGES * _GROUPS, _ROWS, _BLOCK_K], a_tiles.layout)
    if B_COLUMNS:
        b_ring = gl.allocate_shared_memory(b_tiles.dtype, [STAGES, BLOCK_N, _BLOCK_K], b_tiles.layout)
    else:
        b_ring = gl.allocate_shared_memory(b_tiles.dtype, [STAGES, _BLOCK_K, BLOCK_N], b_tiles.layout)
    buffers = gl.allocate_shared_memory(a_tiles.dtype, [_GROUPS * 2, _ROWS, _PART], a_tiles.layout)
    # That a stage has come, and that either group has used it.
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES * _GROUPS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
    for i in gl.static_range(STAGES * _GROUPS):
        mbarrier.init(free.index(i), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_multiply, (0, c_tiles, c_ptr, stride_cm, a_ring, b_ring, buffers, ready, free, M, N, K, tiles,
                         A_COLUMNS, B_COLUMNS, BLOCK_N, GROUP_M, STAGES, LAG, TMA)),
            (_multiply, (1, c_tiles, c_ptr, stride_cm, a_ring, b_ring, buffers, ready, free, M, N, K, tiles,
                         A_COLUMNS, B_COLUMNS, BLOCK_N, GROUP_M, STAGES, LAG, TMA)),
            (_load, (a_tiles, b_tiles, a_ring, b_ring, ready, free, M, N, K, tiles,
                     A_COLUMNS, B_COLUMNS, BLOCK_N, GROUP_M, STAGES)),
        ],
        [4, 1],
        [_MULTIPLYING, _LOADING],
    )  # fmt: skip


def count(c: torch.Tensor, block_n: int = 256) -> int:
    """Number of tiles of the result."""
    return triton.cdiv(c.shape[0], _BLOCK_M.value) * triton.cdiv(c.shape[1], block_n)


def serves(a: torch.Tensor, c: torch.Tensor) -> bool:
    """Whether there is a GPU for the kernel and a tile for every SM."""
    return capability(a) == 90 and a.element_size() == 2 and a.shape[1] > 0 and count(c) >= multiprocessors(a)


def _tiles(matrix: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    """A descriptor of (rows, columns) tiles. The column stride is taken to be 1: PyTorch gives a single column any stride."""
    dtype = gl.bfloat16 if matrix.dtype == torch.bfloat16 else gl.float16
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], dtype)
    return TensorDescriptor(matrix, list(matrix.shape), [matrix.stride(0), 1], [rows, columns], layout)


def launch(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor,
    block_n: int = 256, group: int = 8, stages: int = 4, lag: int = 2, tma: bool | None = None,
) -> None:  # fmt: skip
    """Write ``c`` for operands whose rows, or columns, start at 16 bytes."""
    a_columns, b_columns = (t.stride(0) == 1 and t.stride(1) != 1 for t in (a, b))
    if tma is None:
        tma = c.stride(0) % 8 == 0 and c.data_ptr() % 16 == 0
    rows, depth = _ROWS.value, _BLOCK_K.value
    with device_of(a):
        matmul_hopper_kernel[(min(count(c, block_n), multiprocessors(a)),)](
            _tiles(a.T if a_columns else a, rows, depth),
            _tiles(b.T, block_n, depth) if b_columns else _tiles(b, depth, block_n),
            _tiles(c, rows, _PART.value) if tma else None,
            c, c.stride(0), *c.shape, a.shape[1], A_COLUMNS=a_columns, B_COLUMNS=b_columns,
            BLOCK_N=block_n, GROUP_M=group, STAGES=stages, LAG=lag, TMA=tma, num_warps=4,
        )  # fmt: skip
