"""Warp-specialized backward pass of attention on Hopper, of two launches without atomics: dK and dV, and dQ.

One warp loads and two warpgroups multiply, each with rows of its own: while one computes powers of two and differences, the
tensor cores multiply for the other. Scores of dK and dV are (keys, queries), so that what goes into the second products stays in
registers. As FlashAttention-3 (Shah et al., arXiv:2407.08608), whose single launch adds
up dQ by atomics.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tilescope_kernels.attention.flash import _place, _rows

#: Rows of a program: 64, those of a tensor core instruction, for each of two groups of warps.
_PROGRAM = gl.constexpr(128)
_ROWS = gl.constexpr(_PROGRAM.value // 2)
#: Registers of a thread that multiplies and of one that loads; together all that a multiprocessor has.
_MULTIPLYING, _LOADING = gl.constexpr(240), gl.constexpr(24)


@triton.jit
def attention_row_terms_kernel(
    terms_ptr, o_ptr, do_ptr, lse_ptr, o_strides, do_strides, heads, queries, rows,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of each query its lse and the inner product of its o and do: ``terms`` (batch, heads, 2, rows).

    Queries that do not exist, up to ``rows``, get infinity and 0: 2^(score - infinity) = 0 is their weight.
    """
    batch, head, start = _place(rows, heads, BLOCK, False)
    o = _rows(o_ptr, None, o_strides, batch, head, start, queries, BLOCK, COLUMNS, True)
    do = _rows(do_ptr, None, do_strides, batch, head, start, queries, BLOCK, COLUMNS, True)
    query = start + tl.arange(0, BLOCK)
    place = tl.cast(batch * heads + head, tl.int64)
    lse = tl.load(lse_ptr + place * queries + query, mask=query < queries, other=float("inf"))
    terms_ptr += 2 * place * rows
    tl.store(terms_ptr + query, lse)
    tl.store(terms_ptr + rows + query, tl.sum(o.to(tl.float32) * do.to(tl.float32), 1))


@gluon.jit
def _barriers(STAGES: gl.constexpr):
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
def _load_block(
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
def _load_own(a_tiles, b_tiles, as_, bs, ready, batch, head, start):
    """Load the rows of both groups that stay."""
    mbarrier.expect(ready.index(0), 4 * a_tiles.block_type.nbytes)
    for group in gl.static_range(2):
        place = start + group * _ROWS
        tma.async_copy_global_to_shared(a_tiles, [batch, head, place, 0], ready.index(0), as_.index(group))
        tma.async_copy_global_to_shared(b_tiles, [batch, head, place, 0], ready.index(0), bs.index(group))


@gluon.jit
def _store_own(out_tiles, total, shared, batch, head, place, GROUP: gl.constexpr, COLUMNS: gl.constexpr):
    """Store the rows of one group by way of shared memory; the descriptor leaves out rows that do not exist."""
    shared.index(GROUP).reshape([_ROWS, COLUMNS]).store(total.to(shared.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(out_tiles, [batch, head, place, 0], shared.index(GROUP))


# --- dK and dV -------------------------------------------------------------------------------------------------------


@gluon.jit
def _load_queries(
    q_tiles, do_tiles, k_tiles, v_tiles, qs, dos, ks, vs, ready, free, batch, kv_head, start, first, blocks,
    GROUP: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    _load_own(k_tiles, v_tiles, ks, vs, ready, batch, kv_head, start)
    step = first * 0
    for member in range(GROUP):
        for block in range(first, blocks):
            _load_block(
                q_tiles, do_tiles, qs, dos, ready, free, batch, kv_head * GROUP + member, block * BLOCK, step, STAGES
            )
            step += 1


@gluon.jit
def _gather_step(
    dk, dv, k, v, qs, dos, terms_ptr, ready, free, key, start, block, step, rows, score_scale,
    BLOCK: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
    SCORES: gl.constexpr, TOTAL: gl.constexpr,
):  # fmt: skip
    """Add a block of queries to dK and dV."""
    slot = step % STAGES
    query = block * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, SCORES))
    mbarrier.wait(ready.index(1 + slot), (step // STAGES) & 1)
    q = qs.index(slot).reshape([BLOCK, COLUMNS])
    do = dos.index(slot).reshape([BLOCK, COLUMNS])
    none = gl.zeros([_ROWS, BLOCK], gl.float32, SCORES)
    scores = warpgroup_mma(k, q.permute([1, 0]), none, use_acc=False, is_async=True)
    dp = warpgroup_mma(v, do.permute([1, 0]), none, use_acc=False, is_async=True)
    lse = gl.load(terms_ptr + query)
    scores = warpgroup_mma_wait(1, deps=[scores])
    p = gl.exp2(scores * score_scale - lse[None, :])
    if CAUSAL:  # noqa: SIM102 - a constant
        if block * BLOCK < start + _ROWS:  # some key is after some query
            p = gl.where(key[:, None] <= query[None, :], p, 0.0)
    weights = gl.convert_layout(p.to(q.dtype), gl.DotOperandLayout(0, TOTAL, 2))
    delta = gl.load(terms_ptr + rows + query)
    dv = warpgroup_mma(weights, do, dv, is_async=True)
    dp = warpgroup_mma_wait(1, deps=[dp])
    ds = gl.convert_layout((p * (dp - delta[None, :])).to(q.dtype), gl.DotOperandLayout(0, TOTAL, 2))
    dk = warpgroup_mma(ds, q, dk, is_async=True)
    dk, dv = warpgroup_mma_wait(0, deps=[dk, dv])
    mbarrier.arrive(free.index(slot), count=1)
    return dk, dv


@gluon.jit
def _gather(
    PART: gl.constexpr, dk_tiles, dv_tiles, qs, dos, ks, vs, terms_ptr, ready, free, batch, kv_head, kv_heads, start,
    first, blocks, rows, scale, score_scale, GROUP: gl.constexpr, BLOCK: gl.constexpr, COLUMNS: gl.constexpr,
    STAGES: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """dK and dV of the keys of one warpgroup."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    TOTAL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    start += PART * _ROWS
    key = start + gl.arange(0, _ROWS, layout=gl.SliceLayout(1, SCORES))
    k = ks.index(PART).reshape([_ROWS, COLUMNS])
    v = vs.index(PART).reshape([_ROWS, COLUMNS])
    dv = gl.zeros([_ROWS, COLUMNS], gl.float32, TOTAL)
    dk = gl.zeros([_ROWS, COLUMNS], gl.float32, TOTAL)
    mbarrier.wait(ready.index(0), 0)
    terms_ptr += 2 * (batch * kv_heads + kv_head).to(gl.int64) * GROUP * rows
    each = blocks - first
    # One loop, whose blocks ask whether they need a mask: of two, registers do not suffice.
    for step in range(GROUP * each):
        block = first + step
        own_terms = terms_ptr
        if GROUP > 1:
            block = first + step % each
            own_terms += 2 * (step // each) * rows
        dk, dv = _gather_step(
            dk, dv, k, v, qs, dos, own_terms, ready, free, key, start, block, step, rows, score_scale,
            BLOCK, COLUMNS, STAGES, CAUSAL, SCORES, TOTAL,
        )  # fmt: skip
    _store_own(dv_tiles, dv, vs, batch, kv_head, start, PART, COLUMNS)
    _store_own(dk_tiles, dk * scale, ks, batch, kv_head, start, PART, COLUMNS)
    tma.store_wait(0)


@gluon.jit
def attention_backward_kv_hopper_kernel(
    dk_tiles, dv_tiles, do_tiles, q_tiles, k_tiles, v_tiles, terms_ptr, kv_heads, queries, keys, rows, scale, score_scale,
    GROUP: gl.constexpr, COLUMNS: gl.constexpr, CAUSAL: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """dK and dV of 128 keys of one head, over all queries of the GROUP heads that share it. Launched with 4 warps.

    Descriptors are of tensors (batch, heads, rows, COLUMNS) in 16 bits, those of q and do of BLOCK rows, the others of 64.
    """
    # The first keys are seen by the most queries: the order is right as it is.
    parts = (keys + _PROGRAM - 1) // _PROGRAM
    start = gl.program_id(0) % parts * _PROGRAM
    batch = gl.program_id(0) // parts // kv_heads
    kv_head = gl.program_id(0) // parts % kv_heads
    blocks = (queries + BLOCK - 1) // BLOCK
    first = start * 0
    if CAUSAL:
        first = gl.minimum(start // BLOCK, blocks)
    ks = gl.allocate_shared_memory(q_tiles.dtype, [2, 1, 1, _ROWS, COLUMNS], k_tiles.layout)
    vs = gl.allocate_shared_memory(q_tiles.dtype, [2, 1, 1, _ROWS, COLUMNS], v_tiles.layout)
    qs = gl.allocate_shared_memory(q_tiles.dtype, [STAGES, 1, 1, BLOCK, COLUMNS], q_tiles.layout)
    dos = gl.allocate_shared_memory(q_tiles.dtype, [STAGES, 1, 1, BLOCK, COLUMNS], do_tiles.layout)
    ready, free = _barriers(STAGES)
    gl.warp_specialize(
        [
            (_gather, (0, dk_tiles, dv_tiles, qs, dos, ks, vs, terms_ptr, ready, free, batch, kv_head, kv_heads, start,
                       first, blocks, rows, scale, score_scale, GROUP, BLOCK, COLUMNS, STAGES, CAUSAL)),
            (_gather, (1, dk_tiles, dv_tiles, qs, dos, ks, vs, terms_ptr, ready, free, batch, kv_head, kv_heads, start,
                       first, blocks, rows, scale, score_scale, GROUP, BLOCK, COLUMNS, STAGES, CAUSAL)),
            (_load_queries, (q_tiles, do_tiles, k_tiles, v_tiles, qs, dos, ks, vs, ready, free, batch, kv_head, start,
                             first, blocks, GROUP, BLOCK, STAGES)),
        ],
        [4, 1],
        [_MULTIPLYING, _LOADING],
    )  # fmt: skip


# --- dQ --------------------------------------------------------------------------------------------------------------


@gluon.jit
def _load_keys(
    q_tiles, do_tiles, k_tiles, v_tiles, qs, dos, ks, vs, ready, free, batch, head, kv_head, start, blocks,
    BLOCK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Load the queries of both warpgroups, then keys and values from the last block to the first."""
    _load_own(q_tiles, do_tiles, qs, dos, ready, batch, head, start)
    for step in range(blocks):
        place = (blocks - 1 - step) * BLOCK
        _load_block(k_tiles, v_tiles, ks, vs, ready, free, batch, kv_head, place, step, STAGES)


@gluon.jit
def _attend_step(
    dq, q, do, ks, vs, lse, delta, ready, free, query, step, blocks, keys, score_scale,
    BLOCK: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr, MASKED: gl.constexpr,
    SCORES: gl.constexpr, TOTAL: gl.constexpr,
):  # fmt: skip
    """Add a block of keys to dQ."""
    slot = step % STAGES
    mbarrier.wait(ready.index(1 + slot), (step // STAGES) & 1)
    k = ks.index(slot).reshape([BLOCK, COLUMNS])
    v = vs.index(slot).reshape([BLOCK, COLUMNS])
    none = gl.zeros([_ROWS, BLOCK], gl.float32, SCORES)
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
    """dQ of the queries of one warpgroup: first the blocks of keys that need a mask, then the ``whole`` ones without."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    TOTAL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    start += PART * _ROWS
    query = start + gl.arange(0, _ROWS, layout=gl.SliceLayout(1, SCORES))
    terms_ptr += 2 * (batch * heads + head).to(gl.int64) * rows
    lse = gl.load(terms_ptr + query)
    delta = gl.load(terms_ptr + rows + query)
    q = qs.index(PART).reshape([_ROWS, COLUMNS])
    do = dos.index(PART).reshape([_ROWS, COLUMNS])
    dq = gl.zeros([_ROWS, COLUMNS], gl.float32, TOTAL)
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
    _store_own(dq_tiles, dq * scale, qs, batch, head, start, PART, COLUMNS)
    tma.store_wait(0)


@gluon.jit
def attention_backward_q_hopper_kernel(
    dq_tiles, do_tiles, q_tiles, k_tiles, v_tiles, terms_ptr, heads, keys, queries, rows, scale, score_scale,
    GROUP: gl.constexpr, COLUMNS: gl.constexpr, CAUSAL: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """dQ of 128 queries of one head. Launched with 4 warps.

    Descriptors are of tensors (batch, heads, rows, COLUMNS) in 16 bits, those of k and v of BLOCK rows, the others of 64.
    """
    parts = (queries + _PROGRAM - 1) // _PROGRAM
    part = gl.program_id(0) % parts
    if CAUSAL:  # The long programs first, the short ones fill the end.
        part = parts - 1 - part
    batch = gl.program_id(0) // parts // heads
    head = gl.program_id(0) // parts % heads
    start = part * _PROGRAM
    end = keys
    whole = keys // BLOCK
    if CAUSAL:
        end = gl.minimum(keys, start + _PROGRAM)
        whole = gl.minimum(keys, start + 1) // BLOCK
    blocks = (end + BLOCK - 1) // BLOCK
    qs = gl.allocate_shared_memory(q_tiles.dtype, [2, 1, 1, _ROWS, COLUMNS], q_tiles.layout)
    dos = gl.allocate_shared_memory(q_tiles.dtype, [2, 1, 1, _ROWS, COLUMNS], do_tiles.layout)
    ks = gl.allocate_shared_memory(q_tiles.dtype, [STAGES, 1, 1, BLOCK, COLUMNS], k_tiles.layout)
    vs = gl.allocate_shared_memory(q_tiles.dtype, [STAGES, 1, 1, BLOCK, COLUMNS], v_tiles.layout)
    ready, free = _barriers(STAGES)
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
        [_MULTIPLYING, _LOADING],
    )  # fmt: skip
