"""Shared parts of attention's backward kernels on Hopper: constants, mbarriers, loads and stores of tiles."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

#: Rows per program: 64, the M of a wgmma instruction, for each of two warpgroups.
PROGRAM = gl.constexpr(128)
ROWS = gl.constexpr(PROGRAM.value // 2)
#: Registers per thread of the multiplying warpgroups and of the loading warp. Together they fill the SM's register file.
MULTIPLYING, LOADING = gl.constexpr(240), gl.constexpr(24)


@gluon.jit
def barriers(STAGES: gl.constexpr):
    """Initialize mbarriers. ``ready``: the resident tiles, then each stage, have arrived. ``free``: both warpgroups have used a stage."""
    ready = gl.allocate_shared_memory(gl.int64, [1 + STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(1 + STAGES):
        mbarrier.init(ready.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(free.index(i), count=2)
    fence_async_shared()
    return ready, free


@gluon.jit
def load_block(
    a_tiles, b_tiles, as_, bs, ready, free, batch, head, place, step, STAGES: gl.constexpr
):  # fmt: skip
    """Load a tile of both tensors, from row ``place`` on, once both warpgroups have used the stage."""
    slot = step % STAGES
    # Every stage starts free: on a fresh mbarrier a wait for the previous phase returns at once.
    mbarrier.wait(free.index(slot), (step // STAGES) & 1 ^ 1)
    arrived = ready.index(1 + slot)
    mbarrier.expect(arrived, 2 * a_tiles.block_type.nbytes)
    tma.async_copy_global_to_shared(a_tiles, [batch, head, place, 0], arrived, as_.index(slot))
    tma.async_copy_global_to_shared(b_tiles, [batch, head, place, 0], arrived, bs.index(slot))


@gluon.jit
def load_own(a_tiles, b_tiles, as_, bs, ready, batch, head, start):
    """Load the tiles that stay resident: of both tensors, one for each warpgroup."""
    mbarrier.expect(ready.index(0), 4 * a_tiles.block_type.nbytes)
    for group in gl.static_range(2):
        place = start + group * ROWS
        tma.async_copy_global_to_shared(a_tiles, [batch, head, place, 0], ready.index(0), as_.index(group))
        tma.async_copy_global_to_shared(b_tiles, [batch, head, place, 0], ready.index(0), bs.index(group))


@gluon.jit
def store_own(out_tiles, total, shared, batch, head, place, GROUP: gl.constexpr, COLUMNS: gl.constexpr):
    """Start storing one warpgroup's rows through shared memory. TMA clips rows past the end."""
    shared.index(GROUP).reshape([ROWS, COLUMNS]).store(total.to(shared.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(out_tiles, [batch, head, place, 0], shared.index(GROUP))


@gluon.jit
def block_of(step, first, each, GROUP: gl.constexpr):
    """A step's tile of queries, and its head within the group. Each head has ``each`` tiles, from ``first`` on."""
    if GROUP == 1:
        return first + step, step * 0
    else:
        return first + step % each, step // each
