"""``c += a.T @ b`` in 16 bits on Hopper, warp-specialized: one warp loads by TMA, two warpgroups multiply and accumulate.

For a small K, such as a chunk of rows whose product is added to a weight's gradient, reading and writing c takes as long as the
product. Here the load of a tile of c overlaps the tile's main loop, the tile is updated in shared memory, and its store
overlaps the next tile's main loop. The kernel is in Gluon, because Triton does not assign work to warps.

It is faster than cuBLAS for chunks of few rows; with more rows cuBLAS overlaps as much.
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
from tilescope_kernels._shared.hopper_pipeline import advance
from tilescope_kernels._shared.integers import cdiv
from tilescope_kernels._shared.launches import launch
from tilescope_kernels._shared.launching import capability, multiprocessors
from tilescope_kernels._shared.tile_order import tile_origin
from tilescope_kernels.losses.class_products import slices

#: Warpgroups that multiply, and the rows of a tile of each.
_GROUPS, _ROWS = gl.constexpr(2), gl.constexpr(64)
#: Columns of a tile, columns of each of its buffers, and a step along K: 128 bytes.
_WIDE, _PART, _BLOCK_K = gl.constexpr(256), gl.constexpr(64), gl.constexpr(64)
_PARTS = gl.constexpr(_WIDE.value // _PART.value)
#: Pipeline stages of the operands. The tile of c takes the rest of shared memory.
_STAGES = gl.constexpr(3)
#: The step at which the first warpgroup's rows of c are loaded; the second's are loaded a step later.
_FETCH = gl.constexpr(2)
#: Steps that the second warpgroup lags behind, so that one keeps the tensor cores busy during the other's epilogue.
_LAG = gl.constexpr(2)
#: Rows of tiles that are walked together, to share operands in L2.
_GROUP_M = gl.constexpr(8)
#: Registers per thread of the warpgroups that multiply and of the warp that loads.
_MULTIPLYING, _LOADING = gl.constexpr(232), gl.constexpr(40)


@gluon.jit
def _load(a_tiles, b_tiles, c_tiles, a_ring, b_ring, c_buffers, ready, free, come, gone, M, N, K, pieces):
    """Producer: load operands as far ahead as the ring allows, and each tile of c once the previous one is stored."""
    # All slots begin free: a wait for the phase before the barrier's first one returns at once.
    slot = gl.to_tensor(0)
    phase = gl.to_tensor(1)
    turn = gl.to_tensor(0)
    for piece in range(gl.program_id(0), pieces, gl.num_programs(0)):
        start_m, start_n = tile_origin(piece, M, N, _GROUPS * _ROWS, _WIDE, _GROUP_M)
        for k in range(0, K, _BLOCK_K):
            arrived = ready.index(slot)
            for i in gl.static_range(_GROUPS):
                mbarrier.wait(free.index(slot * _GROUPS + i), phase)
            mbarrier.expect(arrived, 2 * (_GROUPS * _ROWS + _WIDE) * _BLOCK_K)
            for i in gl.static_range(_GROUPS):
                tma.async_copy_global_to_shared(
                    a_tiles, [k, start_m + i * _ROWS], arrived, a_ring.index(slot * _GROUPS + i)
                )
            tma.async_copy_global_to_shared(b_tiles, [k, start_n], arrived, b_ring.index(slot))
            for i in gl.static_range(_GROUPS):
                if k == (_FETCH + i) * _BLOCK_K:
                    mbarrier.wait(gone.index(i), turn)
                    mbarrier.expect(come.index(i), 2 * _ROWS * _WIDE)
                    for part in gl.static_range(_PARTS):
                        tma.async_copy_global_to_shared(
                            c_tiles, [start_m + i * _ROWS, start_n + part * _PART], come.index(i),
                            c_buffers.index(i * _PARTS + part),
                        )  # fmt: skip
            slot, phase = advance(slot, phase, _STAGES)
        turn ^= 1


@gluon.jit
def _add(x, c_tiles, c_buffers, place, start_m, start_n):
    """Add ``x`` to c in the buffers from ``place`` on, and start their stores."""
    if x.shape[1] > _PART:
        left, right = x.reshape(_ROWS, 2, x.shape[1] // 2).permute(0, 2, 1).split()
        _add(left, c_tiles, c_buffers, place, start_m, start_n)
        HALF: gl.constexpr = x.shape[1] // 2
        _add(right, c_tiles, c_buffers, place + HALF // _PART, start_m, start_n + HALF)
    else:
        LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _PART, 16])
        buffer = c_buffers.index(place)
        total = buffer.load(LAYOUT).to(gl.float32) + gl.convert_layout(x, LAYOUT)
        buffer.store(total.to(c_tiles.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(c_tiles, [start_m, start_n], buffer)


@gluon.jit
def _multiply(WHICH: gl.constexpr, c_tiles, a_ring, b_ring, c_buffers, ready, free, come, gone, M, N, K, pieces):
    """Consumer: multiply this warpgroup's rows of this program's tiles and add them to c."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _WIDE, 16])
    if WHICH == 1:
        # Wait for the other warpgroup's first use of that slot. It cannot use the slot twice before this one has used it.
        mbarrier.wait(free.index((_LAG - 1) * _GROUPS), 0)
    slot = gl.to_tensor(0)
    phase = gl.to_tensor(0)
    turn = gl.to_tensor(0)
    for piece in range(gl.program_id(0), pieces, gl.num_programs(0)):
        start_m, start_n = tile_origin(piece, M, N, _GROUPS * _ROWS, _WIDE, _GROUP_M)
        total = gl.zeros([_ROWS, _WIDE], gl.float32, LAYOUT)
        # Not `slot`: Triton does not carry a variable through a loop if it is the same value as another one before it.
        used = gl.to_tensor(0)
        for k in range(0, K, _BLOCK_K):
            mbarrier.wait(ready.index(slot), phase)
            a = a_ring.index(slot * _GROUPS + WHICH).permute([1, 0])
            total = warpgroup_mma(a, b_ring.index(slot), total, is_async=True)
            # With one wgmma outstanding the previous step's is finished: free its slot.
            total = warpgroup_mma_wait(1, deps=[total])
            mbarrier.arrive(free.index(used * _GROUPS + WHICH), count=1, pred=k > 0)
            # The previous tile's store has finished by now.
            tma.store_wait(0)
            mbarrier.arrive(gone.index(WHICH), count=1, pred=k == 0)
            used = slot
            slot, phase = advance(slot, phase, _STAGES)
        total = warpgroup_mma_wait(0, deps=[total])
        mbarrier.arrive(free.index(used * _GROUPS + WHICH), count=1)
        mbarrier.wait(come.index(WHICH), turn)
        _add(total, c_tiles, c_buffers, WHICH * _PARTS, start_m + WHICH * _ROWS, start_n)
        turn ^= 1
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["M", "N", "K", "pieces"])
def accumulate_hopper_kernel(a_tiles, b_tiles, c_tiles, M, N, K, pieces):
    """Persistent over tiles of 128x256 of c. Launched with 4 warps; K has more than ``_FETCH + 1`` steps.

    The TMA descriptors are of 64x64 tiles of a (K, M), 64x256 of b (K, N) and 64x64 of c (M, N).
    """
    a_ring = gl.allocate_shared_memory(a_tiles.dtype, [_STAGES * _GROUPS, _BLOCK_K, _ROWS], a_tiles.layout)
    b_ring = gl.allocate_shared_memory(b_tiles.dtype, [_STAGES, _BLOCK_K, _WIDE], b_tiles.layout)
    c_buffers = gl.allocate_shared_memory(c_tiles.dtype, [_GROUPS * _PARTS, _ROWS, _PART], c_tiles.layout)
    # mbarriers: a stage is loaded; a warpgroup has used it; a warpgroup's rows of c are loaded; they are stored.
    ready = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [_STAGES * _GROUPS, 1], mbarrier.MBarrierLayout())
    come = gl.allocate_shared_memory(gl.int64, [_GROUPS, 1], mbarrier.MBarrierLayout())
    gone = gl.allocate_shared_memory(gl.int64, [_GROUPS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(_STAGES):
        mbarrier.init(ready.index(i), count=1)
    for i in gl.static_range(_STAGES * _GROUPS):
        mbarrier.init(free.index(i), count=1)
    for i in gl.static_range(_GROUPS):
        mbarrier.init(come.index(i), count=1)
        mbarrier.init(gone.index(i), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_multiply, (0, c_tiles, a_ring, b_ring, c_buffers, ready, free, come, gone, M, N, K, pieces)),
            (_multiply, (1, c_tiles, a_ring, b_ring, c_buffers, ready, free, come, gone, M, N, K, pieces)),
            (_load, (a_tiles, b_tiles, c_tiles, a_ring, b_ring, c_buffers, ready, free, come, gone, M, N, K, pieces)),
        ],
        [4, 1],
        [_MULTIPLYING, _LOADING],
    )  # fmt: skip


def _reached(matrix: torch.Tensor) -> bool:
    """Whether TMA can access the matrix: its rows are contiguous and 16-byte aligned."""
    return matrix.stride(1) == 1 and matrix.stride(0) % 8 == 0 and matrix.data_ptr() % 16 == 0


def _serves(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the kernel can run: Hopper, 16 bits, enough steps along K, aligned matrices."""
    if capability(a) != 90 or a.element_size() != 2 or min(*c.shape) < _BLOCK_K.value:
        return False
    return a.shape[0] > (_FETCH.value + 1) * _BLOCK_K.value and all(map(_reached, (a, b, c)))


def add_product(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """Add ``a.T @ b`` of matrices (K, M) and (K, N) to ``c``, rounding once. cuBLAS does it where the kernel cannot."""
    if not _serves(c, a, b):
        for part in slices(c.shape[0], c.dtype):
            c[part].addmm_(a[:, part].T, b)
        return
    (k, m), n = a.shape, b.shape[1]
    pieces = cdiv(m, _GROUPS.value * _ROWS.value) * cdiv(n, _WIDE.value)
    launch(
        accumulate_hopper_kernel, (min(pieces, multiprocessors(a)),),
        gluon_tiles(a, _BLOCK_K.value, _ROWS.value), gluon_tiles(b, _BLOCK_K.value, _WIDE.value),
        gluon_tiles(c, _ROWS.value, _PART.value), m, n, k, pieces, num_warps=4,
    )  # fmt: skip
