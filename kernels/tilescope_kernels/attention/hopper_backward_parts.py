"""What the backward passes of attention on Hopper share: constants, barriers, and loads and stores of tiles."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

#: Rows of a program: 64, those of a tensor core instruction, for each of two groups of warps.
PROGRAM = gl.constexpr(128)
ROWS = gl.constexpr(PROGRAM.value // 2)
#: Registers of a thread that multiplies and of one that loads; together all that a multiprocessor has.
MULTIPLYING, LOADING = gl.constexpr(240), gl.constexpr(24)


@gluon.jit
def barriers(STAGES: gl.constexpr):
    """One that what stays has come; for each block that it has come, and that both groups have used it."""
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
    """Load the rows of both tensors from ``place`` on, once both groups have left the slot."""
    slot = step % STAGES
    # A barrier's first wait for what has not been used yet must not wait: it asks for the phase before.
    mbarrier.wait(free.index(slot), (step // STAGES) & 1 ^ 1)
    arrived = ready.index(1 + slot)
    mbarrier.expect(arrived, 2 * a_tiles.block_type.nbytes)
    tma.async_copy_global_to_shared(a_tiles, [batch, head, place, 0], arrived, as_.index(slot))
    tma.async_copy_global_to_shared(b_tiles, [batch, head, place, 0], arrived, bs.index(slot))


@gluon.jit
def load_own(a_tiles, b_tiles, as_, bs, ready, batch, head, start):
    """Load the rows of both groups that stay."""
    mbarrier.expect(ready.index(0), 4 * a_tiles.block_type.nbytes)
    for group in gl.static_range(2):
        place = start + group * ROWS
        tma.async_copy_global_to_shared(a_tiles, [batch, head, place, 0], ready.index(0), as_.index(group))
        tma.async_copy_global_to_shared(b_tiles, [batch, head, place, 0], ready.index(0), bs.index(group))


@gluon.jit
def store_own(out_tiles, total, shared, batch, head, place, GROUP: gl.constexpr, COLUMNS: gl.constexpr):
    """Store the rows of one group by way of shared memory; the descriptor leaves out rows that do not exist."""
    shared.index(GROUP).reshape([ROWS, COLUMNS]).store(total.to(shared.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(out_tiles, [batch, head, place, 0], shared.index(GROUP))


@gluon.jit
def block_of(step, first, each, GROUP: gl.constexpr):
    """The block of queries of a step, and which of the heads that share the keys it is of: ``each`` blocks a head, from ``first`` on."""
    if GROUP == 1:
        return first + step, step * 0
    else:
        return first + step % each, step // each
