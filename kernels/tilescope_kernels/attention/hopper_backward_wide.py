"""Warp-specialized backward pass of attention on Hopper in two passes, for heads of more than 128 columns.

Accumulators of dK and dV do not both fit in a warpgroup's registers. In the first pass two warpgroups share 64 keys: one
computes P and accumulates dV, the other accumulates dK. In the second pass each recomputes P for dQ of 64 queries.
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

from tilescope_kernels.attention.hopper_backward import (
    LOADING,
    MULTIPLYING,
    PROGRAM,
    ROWS,
    barriers,
    block_of,
    load_block,
    load_own,
    store_own,
)

# --- dK and dV -------------------------------------------------------------------------------------------------------


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
            load_block(
                q_tiles, do_tiles, qs, dos, ready, free, batch, kv_head * GROUP + member, block * BLOCK, step, STAGES
            )
            step += 1


@gluon.jit
def _finish(out_tiles, total, shared, batch, kv_head, start, COLUMNS: gl.constexpr):
    shared.reshape([ROWS, COLUMNS]).store(total.to(shared.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(out_tiles, [batch, kv_head, start, 0], shared)
    tma.store_wait(0)


@gluon.jit
def _sum_dv(
    dv_tiles, qs, dos, ks, vs, weights, passed, taken, terms_ptr, ready, free, batch, kv_head, kv_heads, start, first,
    blocks, rows, score_scale, finished, GROUP: gl.constexpr, BLOCK: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr,
    CAUSAL: gl.constexpr,
):  # fmt: skip
    """First warpgroup: compute P, pass it on through shared memory, and accumulate dV."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    TOTAL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    key = start + gl.arange(0, ROWS, layout=gl.SliceLayout(1, SCORES))
    k = ks.reshape([ROWS, COLUMNS])
    dv = gl.zeros([ROWS, COLUMNS], gl.float32, TOTAL)
    mbarrier.wait(ready.index(0), 0)
    terms_ptr += 3 * (batch * kv_heads + kv_head).to(gl.int64) * GROUP * rows
    each = blocks - first
    for step in range(GROUP * each):
        block, member = block_of(step, first, each, GROUP)
        own_terms = terms_ptr + 3 * member * rows
        slot = step % STAGES
        query = block * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, SCORES))
        mbarrier.wait(ready.index(1 + slot), (step // STAGES) & 1)
        q = qs.index(slot).reshape([BLOCK, COLUMNS])
        do = dos.index(slot).reshape([BLOCK, COLUMNS])
        none = gl.zeros([ROWS, BLOCK], gl.float32, SCORES)
        scores = warpgroup_mma(k, q.permute([1, 0]), none, use_acc=False, is_async=True)
        lse = gl.load(own_terms + query)
        scores = warpgroup_mma_wait(0, deps=[scores])
        p = gl.exp2(scores * score_scale - lse[None, :])
        if CAUSAL:  # noqa: SIM102 - a constant
            if block * BLOCK < start + ROWS:  # some key is after some query
                p = gl.where(key[:, None] <= query[None, :], p, 0.0)
        p = p.to(q.dtype)
        mbarrier.wait(taken.index(step % 2), (step // 2) & 1 ^ 1)
        weights.index(step % 2).store(p)
        mbarrier.arrive(passed.index(step % 2), count=1)
        p = gl.convert_layout(p, gl.DotOperandLayout(0, TOTAL, 2))
        dv = warpgroup_mma_wait(0, deps=[warpgroup_mma(p, do, dv, is_async=True)])
        mbarrier.arrive(free.index(slot), count=1)
    # Store through the values' shared memory, which the other warpgroup reads until it has finished.
    mbarrier.wait(finished, 0)
    _finish(dv_tiles, dv, vs, batch, kv_head, start, COLUMNS)


@gluon.jit
def _sum_dk(
    dk_tiles, qs, dos, ks, vs, weights, passed, taken, terms_ptr, ready, free, batch, kv_head, kv_heads, start, first,
    blocks, rows, scale, finished, GROUP: gl.constexpr, BLOCK: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Second warpgroup: accumulate dK with the P that the first one passes on."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    TOTAL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    v = vs.reshape([ROWS, COLUMNS])
    dk = gl.zeros([ROWS, COLUMNS], gl.float32, TOTAL)
    mbarrier.wait(ready.index(0), 0)
    terms_ptr += 3 * (batch * kv_heads + kv_head).to(gl.int64) * GROUP * rows
    each = blocks - first
    for step in range(GROUP * each):
        block, member = block_of(step, first, each, GROUP)
        own_terms = terms_ptr + 3 * member * rows
        slot = step % STAGES
        query = block * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, SCORES))
        mbarrier.wait(ready.index(1 + slot), (step // STAGES) & 1)
        q = qs.index(slot).reshape([BLOCK, COLUMNS])
        do = dos.index(slot).reshape([BLOCK, COLUMNS])
        none = gl.zeros([ROWS, BLOCK], gl.float32, SCORES)
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
    # Store through the queries' shared memory: the other warpgroup passed P on after its last product with them.
    _finish(dk_tiles, dk * scale, qs.index(0), batch, kv_head, start, COLUMNS)


@gluon.jit
def attention_backward_kv_wide_hopper_kernel(
    dk_tiles, dv_tiles, do_tiles, q_tiles, k_tiles, v_tiles, terms_ptr, kv_heads, queries, keys, rows, scale, score_scale,
    GROUP: gl.constexpr, COLUMNS: gl.constexpr, CAUSAL: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Compute dK and dV of 64 keys per program, else as ``attention_backward_hopper_kernel``. All tiles have 64 rows, so BLOCK is 64."""
    parts = (keys + ROWS - 1) // ROWS
    start = gl.program_id(0) % parts * ROWS
    batch = gl.program_id(0) // parts // kv_heads
    kv_head = gl.program_id(0) // parts % kv_heads
    blocks = (queries + BLOCK - 1) // BLOCK
    first = start * 0
    if CAUSAL:
        first = gl.minimum(start // BLOCK, blocks)
    ks = gl.allocate_shared_memory(q_tiles.dtype, [1, 1, ROWS, COLUMNS], k_tiles.layout)
    vs = gl.allocate_shared_memory(q_tiles.dtype, [1, 1, ROWS, COLUMNS], v_tiles.layout)
    qs = gl.allocate_shared_memory(q_tiles.dtype, [STAGES, 1, 1, BLOCK, COLUMNS], q_tiles.layout)
    dos = gl.allocate_shared_memory(q_tiles.dtype, [STAGES, 1, 1, BLOCK, COLUMNS], do_tiles.layout)
    PASSED: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, BLOCK], q_tiles.dtype)
    weights = gl.allocate_shared_memory(q_tiles.dtype, [2, ROWS, BLOCK], PASSED)
    passed = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    taken = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    finished = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(passed.index(i), count=1)
        mbarrier.init(taken.index(i), count=1)
    mbarrier.init(finished, count=1)
    ready, free = barriers(STAGES)
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
        [MULTIPLYING, LOADING],
    )  # fmt: skip


# --- dQ --------------------------------------------------------------------------------------------------------------


@gluon.jit
def _load_keys(
    q_tiles, do_tiles, k_tiles, v_tiles, qs, dos, ks, vs, ready, free, batch, head, kv_head, start, blocks,
    BLOCK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Producer warp: load both warpgroups' q and do, then tiles of keys and values from last to first."""
    load_own(q_tiles, do_tiles, qs, dos, ready, batch, head, start)
    for step in range(blocks):
        place = (blocks - 1 - step) * BLOCK
        load_block(k_tiles, v_tiles, ks, vs, ready, free, batch, kv_head, place, step, STAGES)


@gluon.jit
def _attend_step(
    dq, q, do, ks, vs, lse, delta, ready, free, query, step, blocks, keys, score_scale,
    BLOCK: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr, MASKED: gl.constexpr,
    SCORES: gl.constexpr, TOTAL: gl.constexpr,
):  # fmt: skip
    """Accumulate a tile of keys into dQ."""
    slot = step % STAGES
    mbarrier.wait(ready.index(1 + slot), (step // STAGES) & 1)
    k = ks.index(slot).reshape([BLOCK, COLUMNS])
    v = vs.index(slot).reshape([BLOCK, COLUMNS])
    none = gl.zeros([ROWS, BLOCK], gl.float32, SCORES)
    scores = warpgroup_mma(q, k.permute([1, 0]), none, use_acc=False, is_async=True)
    dp = warpgroup_mma(do, v.permute([1, 0]), none, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(1, deps=[scores])
    p = gl.exp2(scores * score_scale - lse[:, None])
    dp = warpgroup_mma_wait(0, deps=[dp])
    ds = p * (dp - delta[:, None])
    if MASKED:
        key = (blocks - 1 - step) * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, SCORES))[None, :]
        visible = key < keys
        if CAUSAL:
            visible = visible & (key <= query[:, None])
        ds = gl.where(visible, ds, 0.0)
    ds = gl.convert_layout(ds.to(k.dtype), gl.DotOperandLayout(0, TOTAL, 2))
    dq = warpgroup_mma_wait(0, deps=[warpgroup_mma(ds, k, dq, is_async=True)])
    mbarrier.arrive(free.index(slot), count=1)
    return dq


@gluon.jit
def _attend(
    PART: gl.constexpr, dq_tiles, qs, dos, ks, vs, terms_ptr, ready, free, batch, head, heads, start, blocks, whole, keys,
    rows, scale, score_scale, BLOCK: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Consumer warpgroup: dQ of its 64 queries, over the tiles of keys that need masking, then the ``whole`` others."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    TOTAL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    start += PART * ROWS
    query = start + gl.arange(0, ROWS, layout=gl.SliceLayout(1, SCORES))
    terms_ptr += 3 * (batch * heads + head).to(gl.int64) * rows
    lse = gl.load(terms_ptr + query)
    delta = gl.load(terms_ptr + rows + query)
    q = qs.index(PART).reshape([ROWS, COLUMNS])
    do = dos.index(PART).reshape([ROWS, COLUMNS])
    dq = gl.zeros([ROWS, COLUMNS], gl.float32, TOTAL)
    mbarrier.wait(ready.index(0), 0)
    for step in range(blocks - whole):
        dq = _attend_step(
            dq, q, do, ks, vs, lse, delta, ready, free, query, step, blocks, keys, score_scale,
            BLOCK, COLUMNS, STAGES, CAUSAL, True, SCORES, TOTAL,
        )  # fmt: skip
    for step in range(blocks - whole, blocks):
        dq = _attend_step(
            dq, q, do, ks, vs, lse, delta, ready, free, query, step, blocks, keys, score_scale,
            BLOCK, COLUMNS, STAGES, CAUSAL, False, SCORES, TOTAL,
        )  # fmt: skip
    store_own(dq_tiles, dq * scale, qs, batch, head, start, PART, COLUMNS)
    tma.store_wait(0)


@gluon.jit
def attention_backward_q_hopper_kernel(
    dq_tiles, do_tiles, q_tiles, k_tiles, v_tiles, terms_ptr, heads, keys, queries, rows, scale, score_scale,
    GROUP: gl.constexpr, COLUMNS: gl.constexpr, CAUSAL: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Compute dQ of 128 queries of one head per program. Launch with 4 warps.

    Descriptors are of 16-bit tensors (batch, heads, rows, COLUMNS), with BLOCK rows a tile for k and v, 64 for the others.
    """
    parts = (queries + PROGRAM - 1) // PROGRAM
    part = gl.program_id(0) % parts
    if CAUSAL:  # Longest programs first; the shortest fill the last wave.
        part = parts - 1 - part
    batch = gl.program_id(0) // parts // heads
    head = gl.program_id(0) // parts % heads
    start = part * PROGRAM
    end = keys
    whole = keys // BLOCK
    if CAUSAL:
        end = gl.minimum(keys, start + PROGRAM)
        whole = gl.minimum(keys, start + 1) // BLOCK
    blocks = (end + BLOCK - 1) // BLOCK
    qs = gl.allocate_shared_memory(q_tiles.dtype, [2, 1, 1, ROWS, COLUMNS], q_tiles.layout)
    dos = gl.allocate_shared_memory(q_tiles.dtype, [2, 1, 1, ROWS, COLUMNS], do_tiles.layout)
    ks = gl.allocate_shared_memory(q_tiles.dtype, [STAGES, 1, 1, BLOCK, COLUMNS], k_tiles.layout)
    vs = gl.allocate_shared_memory(q_tiles.dtype, [STAGES, 1, 1, BLOCK, COLUMNS], v_tiles.layout)
    ready, free = barriers(STAGES)
    gl.warp_specialize(
        [
            (_attend, (0, dq_tiles, qs, dos, ks, vs, terms_ptr, ready, free, batch, head, heads, start, blocks, whole,
                       keys, rows, scale, score_scale, BLOCK, COLUMNS, STAGES, CAUSAL)),
            (_attend, (1, dq_tiles, qs, dos, ks, vs, terms_ptr, ready, free, batch, head, heads, start, blocks, whole,
                       keys, rows, scale, score_scale, BLOCK, COLUMNS, STAGES, CAUSAL)),
            (_load_keys, (q_tiles, do_tiles, k_tiles, v_tiles, qs, dos, ks, vs, ready, free, batch, head, head // GROUP,
                          start, blocks, BLOCK, STAGES)),
        ],
        [4, 1],
        [MULTIPLYING, LOADING],
    )  # fmt: skip
