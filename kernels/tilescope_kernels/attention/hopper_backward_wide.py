"""dK and dV on Hopper of heads of more than 128 columns, whose sums one warpgroup's registers do not hold.

Two warpgroups share 64 keys: one weighs them and sums dV, the other takes the weights from shared memory and sums dK.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tilescope_kernels.attention.hopper_backward import _LOADING, _MULTIPLYING, _ROWS, _barriers, _load_block


@gluon.jit
def _load_queries(
    q_tiles, do_tiles, k_tiles, v_tiles, qs, dos, ks, vs, ready, free, batch, kv_head, start, first, blocks,
    GROUP: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    mbarrier.expect(ready.index(0), 2 * k_tiles.block_type.nbytes)
    tma.async_copy_global_to_shared(k_tiles, [batch, kv_head, start, 0], ready.index(0), ks)
    tma.async_copy_global_to_shared(v_tiles, [batch, kv_head, start, 0], ready.index(0), vs)
    step = first * 0
    for member in range(GROUP):
        for block in range(first, blocks):
            _load_block(
                q_tiles, do_tiles, qs, dos, ready, free, batch, kv_head * GROUP + member, block * BLOCK, step, STAGES
            )
            step += 1


@gluon.jit
def _block_of(step, first, each, terms_ptr, rows, GROUP: gl.constexpr):
    """The block of queries of a step, and the terms of its head."""
    block = first + step
    if GROUP > 1:
        block = first + step % each
        terms_ptr += 2 * (step // each) * rows
    return block, terms_ptr


@gluon.jit
def _finish(out_tiles, total, shared, batch, kv_head, start, COLUMNS: gl.constexpr):
    shared.reshape([_ROWS, COLUMNS]).store(total.to(shared.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(out_tiles, [batch, kv_head, start, 0], shared)
    tma.store_wait(0)


@gluon.jit
def _sum_dv(
    dv_tiles, qs, dos, ks, vs, weights, passed, taken, terms_ptr, ready, free, batch, kv_head, kv_heads, start, first,
    blocks, rows, score_scale, finished, GROUP: gl.constexpr, BLOCK: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr,
    CAUSAL: gl.constexpr,
):  # fmt: skip
    """Weigh the keys, pass the weights on, and sum dV."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    TOTAL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    key = start + gl.arange(0, _ROWS, layout=gl.SliceLayout(1, SCORES))
    k = ks.reshape([_ROWS, COLUMNS])
    dv = gl.zeros([_ROWS, COLUMNS], gl.float32, TOTAL)
    mbarrier.wait(ready.index(0), 0)
    terms_ptr += 2 * (batch * kv_heads + kv_head).to(gl.int64) * GROUP * rows
    each = blocks - first
    for step in range(GROUP * each):
        block, own_terms = _block_of(step, first, each, terms_ptr, rows, GROUP)
        slot = step % STAGES
        query = block * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, SCORES))
        mbarrier.wait(ready.index(1 + slot), (step // STAGES) & 1)
        q = qs.index(slot).reshape([BLOCK, COLUMNS])
        do = dos.index(slot).reshape([BLOCK, COLUMNS])
        none = gl.zeros([_ROWS, BLOCK], gl.float32, SCORES)
        scores = warpgroup_mma(k, q.permute([1, 0]), none, use_acc=False, is_async=True)
        lse = gl.load(own_terms + query)
        scores = warpgroup_mma_wait(0, deps=[scores])
        p = gl.exp2(scores * score_scale - lse[None, :])
        if CAUSAL:  # noqa: SIM102 - a constant
            if block * BLOCK < start + _ROWS:  # some key is after some query
                p = gl.where(key[:, None] <= query[None, :], p, 0.0)
        p = p.to(q.dtype)
        mbarrier.wait(taken.index(step % 2), (step // 2) & 1 ^ 1)
        weights.index(step % 2).store(p)
        mbarrier.arrive(passed.index(step % 2), count=1)
        p = gl.convert_layout(p, gl.DotOperandLayout(0, TOTAL, 2))
        dv = warpgroup_mma_wait(0, deps=[warpgroup_mma(p, do, dv, is_async=True)])
        mbarrier.arrive(free.index(slot), count=1)
    # The values' room is the other warpgroup's to read until it has ended.
    mbarrier.wait(finished, 0)
    _finish(dv_tiles, dv, vs, batch, kv_head, start, COLUMNS)


@gluon.jit
def _sum_dk(
    dk_tiles, qs, dos, ks, vs, weights, passed, taken, terms_ptr, ready, free, batch, kv_head, kv_heads, start, first,
    blocks, rows, scale, finished, GROUP: gl.constexpr, BLOCK: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Sum dK with the weights that are passed on."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    TOTAL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    v = vs.reshape([_ROWS, COLUMNS])
    dk = gl.zeros([_ROWS, COLUMNS], gl.float32, TOTAL)
    mbarrier.wait(ready.index(0), 0)
    terms_ptr += 2 * (batch * kv_heads + kv_head).to(gl.int64) * GROUP * rows
    each = blocks - first
    for step in range(GROUP * each):
        block, own_terms = _block_of(step, first, each, terms_ptr, rows, GROUP)
        slot = step % STAGES
        query = block * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, SCORES))
        mbarrier.wait(ready.index(1 + slot), (step // STAGES) & 1)
        q = qs.index(slot).reshape([BLOCK, COLUMNS])
        do = dos.index(slot).reshape([BLOCK, COLUMNS])
        none = gl.zeros([_ROWS, BLOCK], gl.float32, SCORES)
        dp = warpgroup_mma(v, do.permute([1, 0]), none, use_acc=False, is_async=True)
        delta = gl.load(own_terms + rows + query)
        mbarrier.wait(passed.index(step % 2), (step // 2) & 1)
        p = weights.index(step % 2).load(SCORES).to(gl.float32)
        mbarrier.arrive(taken.index(step % 2), count=1)
        dp = warpgroup_mma_wait(0, deps=[dp])
        ds = gl.convert_layout((p * (dp - delta[None, :])).to(q.dtype), gl.DotOperandLayout(0, TOTAL, 2))
        dk = warpgroup_mma_wait(0, deps=[warpgroup_mma(ds, q, dk, is_async=True)])
        mbarrier.arrive(free.index(slot), count=1)
    mbarrier.arrive(finished, count=1)
    # Queries' room, because the other warpgroup may still multiply keys.
    _finish(dk_tiles, dk * scale, qs.index(0), batch, kv_head, start, COLUMNS)


@gluon.jit
def attention_backward_kv_wide_hopper_kernel(
    dk_tiles, dv_tiles, do_tiles, q_tiles, k_tiles, v_tiles, terms_ptr, kv_heads, queries, keys, rows, scale, score_scale,
    GROUP: gl.constexpr, COLUMNS: gl.constexpr, CAUSAL: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """As ``attention_backward_kv_hopper_kernel``, of 64 keys. ``BLOCK`` is 64, too."""
    parts = (keys + _ROWS - 1) // _ROWS
    start = gl.program_id(0) % parts * _ROWS
    batch = gl.program_id(0) // parts // kv_heads
    kv_head = gl.program_id(0) // parts % kv_heads
    blocks = (queries + BLOCK - 1) // BLOCK
    first = start * 0
    if CAUSAL:
        first = gl.minimum(start // BLOCK, blocks)
    ks = gl.allocate_shared_memory(q_tiles.dtype, [1, 1, _ROWS, COLUMNS], k_tiles.layout)
    vs = gl.allocate_shared_memory(q_tiles.dtype, [1, 1, _ROWS, COLUMNS], v_tiles.layout)
    qs = gl.allocate_shared_memory(q_tiles.dtype, [STAGES, 1, 1, BLOCK, COLUMNS], q_tiles.layout)
    dos = gl.allocate_shared_memory(q_tiles.dtype, [STAGES, 1, 1, BLOCK, COLUMNS], do_tiles.layout)
    PASSED: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_ROWS, BLOCK], q_tiles.dtype)
    weights = gl.allocate_shared_memory(q_tiles.dtype, [2, _ROWS, BLOCK], PASSED)
    passed = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    taken = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    finished = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(passed.index(i), count=1)
        mbarrier.init(taken.index(i), count=1)
    mbarrier.init(finished, count=1)
    ready, free = _barriers(STAGES)
    gl.warp_specialize(
        [
            (_sum_dv, (dv_tiles, qs, dos, ks, vs, weights, passed, taken, terms_ptr, ready, free, batch, kv_head, kv_heads,
                       start, first, blocks, rows, score_scale, finished, GROUP, BLOCK, COLUMNS, STAGES, CAUSAL)),
            (_sum_dk, (dk_tiles, qs, dos, ks, vs, weights, passed, taken, terms_ptr, ready, free, batch, kv_head, kv_heads,
                       start, first, blocks, rows, scale, finished, GROUP, BLOCK, COLUMNS, STAGES)),
            (_load_queries, (q_tiles, do_tiles, k_tiles, v_tiles, qs, dos, ks, vs, ready, free, batch, kv_head, start,
                             first, blocks, GROUP, BLOCK, STAGES)),
        ],
        [4, 1],
        [_MULTIPLYING, _LOADING],
    )  # fmt: skip
