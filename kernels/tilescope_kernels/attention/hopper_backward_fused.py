"""Warp-specialized backward pass of attention on Hopper in one launch, of heads of up to 128 columns.

One warp loads and two warpgroups multiply, each with 64 keys of its own, as FlashAttention-3 (Shah et al.,
arXiv:2407.08608): scores and their gradients are computed once, and the sums of dQ are added up in memory. They are
integers, whose sum is the same in any order: a row's unit is chosen so that no sum can overflow (``row_units``). The
product for dQ runs a step late, while the tensor cores would wait for the weights of the next one.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tilescope_kernels.attention.flash import _place, _rows, _store_rows
from tilescope_kernels.attention.hopper_backward import (
    _LOADING,
    _MULTIPLYING,
    _PROGRAM,
    _ROWS,
    _barriers,
    _load_own,
    _store_own,
)

#: Queries and columns of what a warpgroup adds to dQ at a time, and integers of a row of the descriptor of dQ's sums.
PART_ROWS, PART_COLUMNS, WIDTH = gl.constexpr(64), gl.constexpr(64), gl.constexpr(256)
#: Blocks of score gradients in shared memory: written, multiplied, and perhaps still multiplied by the other warpgroup.
_PASSED = gl.constexpr(3)


@builtin
def _add_shared_to_global(tiles, place, shared, _semantic=None):
    """As ``tma.async_copy_shared_to_global``, but adds."""
    kind = ir.DESCRIPTOR_REDUCE_KIND.ADD
    where = _semantic._convert_to_ir_values(place, require_i64=False)
    _semantic.builder.create_async_tma_reduce(kind, tiles.handle, where, shared.handle)


@triton.jit
def _norms(x):
    """The Euclidean norm of each row, infinity where an element is not finite, without overflow between."""
    largest = tl.max(tl.where(tl.abs(x) < float("inf"), tl.abs(x), float("inf")), 1)
    scaled = x / tl.maximum(largest, 1e-37)[:, None]
    norms = largest * tl.sqrt(tl.sum(scaled * scaled, 1))
    return tl.where(largest < float("inf"), norms, float("inf"))


@triton.jit
def _row_terms(
    terms_ptr, sums_ptr, o_ptr, do_ptr, lse_ptr, o_strides, do_strides, heads, queries, rows,
    COLUMNS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    batch, head, start = _place(rows, heads, 64, False)
    o = _rows(o_ptr, None, o_strides, batch, head, start, queries, 64, COLUMNS, True).to(tl.float32)
    do = _rows(do_ptr, None, do_strides, batch, head, start, queries, 64, COLUMNS, True).to(tl.float32)
    query = start + tl.arange(0, 64)
    place = tl.cast(batch * heads + head, tl.int64)
    lse = tl.load(lse_ptr + place * queries + query, mask=query < queries, other=float("inf"))
    tl.store(sums_ptr + (place * rows + start) * PADDED + tl.arange(0, 64 * PADDED), tl.zeros([64 * PADDED], tl.int32))
    terms_ptr += 3 * place * rows
    tl.store(terms_ptr + query, lse)
    tl.store(terms_ptr + rows + query, tl.sum(o * do, 1))
    tl.store(terms_ptr + 2 * rows + query, tl.where(query < queries, 1.0 / tl.maximum(_norms(do), 1e-37), 0.0))


@triton.jit
def _key_bounds(bounds_ptr, k_ptr, v_ptr, k_strides, v_strides, kv_heads, keys, parts, program, COLUMNS: tl.constexpr):
    part, place = program % parts, program // parts
    batch, head = place // kv_heads, place % kv_heads
    k = _rows(k_ptr, None, k_strides, batch, head, part * 64, keys, 64, COLUMNS, True).to(tl.float32)
    v = _rows(v_ptr, None, v_strides, batch, head, part * 64, keys, 64, COLUMNS, True).to(tl.float32)
    bounds_ptr += 2 * tl.cast(place, tl.int64) * parts + part
    tl.store(bounds_ptr, tl.max(tl.where(tl.abs(k) < float("inf"), tl.abs(k), float("inf"))))
    tl.store(bounds_ptr + parts, tl.max(_norms(v), 0))


@triton.jit
def attention_backward_terms_kernel(
    terms_ptr, bounds_ptr, sums_ptr, o_ptr, do_ptr, lse_ptr, k_ptr, v_ptr, o_strides, do_strides, k_strides, v_strides,
    heads, kv_heads, queries, keys, rows, parts, row_programs,
    COLUMNS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """What the other kernels need of each row and of all keys, and zeros for the sums of dQ.

    ``terms`` (batch, heads, 3, rows): of each query its lse, the inner product of its o and do, and the inverse of do's norm. Queries
    that do not exist, up to ``rows``, get infinity and 0: 2^(score - infinity) = 0 is their weight. ``bounds`` (batch, kv_heads, 2,
    parts): of each 64 keys the largest element, and the largest norm of their values.
    """
    if tl.program_id(0) < row_programs:
        _row_terms(
            terms_ptr, sums_ptr, o_ptr, do_ptr, lse_ptr, o_strides, do_strides, heads, queries, rows, COLUMNS, PADDED
        )
    else:
        _key_bounds(
            bounds_ptr,
            k_ptr,
            v_ptr,
            k_strides,
            v_strides,
            kv_heads,
            keys,
            parts,
            tl.program_id(0) - row_programs,
            COLUMNS,
        )


@triton.jit
def attention_backward_q_sums_kernel(
    dq_ptr, sums_ptr, terms_ptr, bounds_ptr, dq_strides, heads, group, queries, rows, parts, scale,
    COLUMNS: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """dQ of 64 queries of a head from the sums, which lie as the warpgroups' threads have them."""
    batch, head, start = _place(rows, heads, 64, False)
    place = tl.cast(batch * heads + head, tl.int64)
    query = start + tl.arange(0, 64)
    part = tl.arange(0, PARTS)
    bounds_ptr += 2 * (place // group) * parts
    largest_key = tl.max(tl.load(bounds_ptr + part, mask=part < parts, other=0.0), 0)
    largest_value = tl.max(tl.load(bounds_ptr + parts + part, mask=part < parts, other=0.0), 0)
    inverse = tl.load(terms_ptr + (3 * place + 2) * rows + query)
    inverse_key, value_units = bound_units(largest_key, largest_value)
    units = row_units(inverse, inverse_key, value_units)
    given = tl.load(sums_ptr + (place * rows + start) * PADDED + tl.arange(0, 64 * PADDED))
    # (64 columns, 8 columns, warps, rows, pairs of columns, 8 rows on, columns)
    given = tl.permute(tl.reshape(given, [PADDED // 64, 8, 4, 8, 4, 2, 2]), [2, 5, 3, 0, 1, 4, 6])
    dq = tl.reshape(given, [64, PADDED]).to(tl.float32) * tl.where(units > 0, scale / units, float("nan"))[:, None]
    _store_rows(dq_ptr, dq_strides, batch, head, start, queries, dq.to(dq_ptr.dtype.element_ty), 64, COLUMNS)


@triton.jit
def bound_units(largest_key, largest_value):
    """What ``row_units`` needs of a head's keys and values. Not finite ones give 0."""
    return 1.0 / tl.maximum(largest_key, 1e-37), 134217728.0 / tl.maximum(largest_value, 1e-30)


@triton.jit
def row_units(inverse, inverse_key, value_units):
    """The units in 1 of a row's sums. 2^28 are the norm of do, twice the largest norm of a value and the largest element of a key.

    That is a bound of dQ, for a score's gradient is its weight times the difference of two inner products of do, with a value and
    with a mean of values. Weights may add up to 8 where they should to 1.
    """
    return tl.minimum(tl.minimum(inverse * value_units, 8.507059173023462e37) * inverse_key, 8.507059173023462e37)


@gluon.jit
def _load_queries(
    q_tiles, do_tiles, k_tiles, v_tiles, qs, dos, ks, vs, shared_terms, terms_ptr, ready, free, batch, kv_head, kv_heads,
    start, first, blocks, rows, GROUP: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Load keys and values of both warpgroups, then blocks of queries, their do and their terms."""
    LANES: gl.constexpr = gl.BlockedLayout([BLOCK // 32], [32], [1], [0])
    _load_own(k_tiles, v_tiles, ks, vs, ready, batch, kv_head, start)
    terms_ptr += 3 * (batch * kv_heads + kv_head).to(gl.int64) * GROUP * rows
    step = first * 0
    for member in range(GROUP):
        head = kv_head * GROUP + member
        for block in range(first, blocks):
            slot = step % STAGES
            query = terms_ptr + block * BLOCK + gl.arange(0, BLOCK, layout=LANES)
            lse, delta = gl.load(query), gl.load(query + rows)
            # A barrier's first wait for what has not been used yet must not wait: it asks for the phase before.
            mbarrier.wait(free.index(slot), (step // STAGES) & 1 ^ 1)
            shared_terms.index(2 * slot).store(lse)
            shared_terms.index(2 * slot + 1).store(delta)
            gl.thread_barrier()
            arrived = ready.index(1 + slot)
            mbarrier.expect(arrived, 2 * q_tiles.block_type.nbytes)
            tma.async_copy_global_to_shared(q_tiles, [batch, head, block * BLOCK, 0], arrived, qs.index(slot))
            tma.async_copy_global_to_shared(do_tiles, [batch, head, block * BLOCK, 0], arrived, dos.index(slot))
            step += 1
        terms_ptr += 3 * rows


@gluon.jit
def _start_dq(step, ds, ks, PART: gl.constexpr, COLUMNS: gl.constexpr, DQ: gl.constexpr):
    """Start the product of the step before for a warpgroup's share of dQ: half the columns or, of 64, half the queries."""
    dq = gl.zeros([PART_ROWS, PART_COLUMNS], gl.float32, DQ)
    for group in gl.static_range(2):
        given = ds.index(2 * (step % _PASSED) + group)
        k = ks.index(group).reshape([_ROWS, COLUMNS])
        if COLUMNS == PART_COLUMNS:
            given = given.slice(PART * PART_ROWS, PART_ROWS, dim=1)
        else:
            k = k.slice(PART * PART_COLUMNS, PART_COLUMNS, dim=1)
        dq = warpgroup_mma(given.permute([1, 0]), k, dq, use_acc=group > 0, is_async=True)
    return dq


@gluon.jit
def _add_dq(dq, units, sums, sum_tiles, place, PART: gl.constexpr, LINES: gl.constexpr):
    """Add a block of dQ to the sums in memory, each thread's numbers one after the other."""
    whole = gl.inline_asm_elementwise(
        "cvt.rni.s32.f32 $0, $1;", "=r,f", [dq * units[:, None]], dtype=gl.int32, is_pure=True, pack=1
    )
    tma.store_wait(0)
    sums.index(PART)._reinterpret(gl.int32, [PART_ROWS, PART_COLUMNS], LINES).store(whole)
    fence_async_shared()
    _add_shared_to_global(sum_tiles, [(2 * place + PART) * (PART_ROWS * PART_COLUMNS // WIDTH), 0], sums.index(PART))


@gluon.jit
def _gather_step(
    dk, dv, dq, units, before, units0, before0, k, v, ks, qs, dos, shared_terms, terms_ptr, ds, sums, sum_tiles, ready, free, full, key, start,
    block, place, step, keys, rows, score_scale, inverse_key, value_units,
    PART: gl.constexpr, BLOCK: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
    SCORES: gl.constexpr, TOTAL: gl.constexpr, DQ: gl.constexpr, LINES: gl.constexpr,
):  # fmt: skip
    """Add a block of queries to dK and dV, and the block of queries before to dQ."""
    slot = step % STAGES
    mbarrier.wait(ready.index(1 + slot), (step // STAGES) & 1)
    q = qs.index(slot).reshape([BLOCK, COLUMNS])
    do = dos.index(slot).reshape([BLOCK, COLUMNS])
    none = gl.zeros([_ROWS, BLOCK], gl.float32, SCORES)
    scores = warpgroup_mma(k, q.permute([1, 0]), none, use_acc=False, is_async=True)
    _add_dq(dq, units0, sums, sum_tiles, before0, PART, LINES)
    dp = warpgroup_mma(v, do.permute([1, 0]), none, use_acc=False, is_async=True)
    lse = shared_terms.index(2 * slot).load(gl.SliceLayout(0, SCORES))
    scores = warpgroup_mma_wait(1, deps=[scores])
    p = gl.exp2(scores * score_scale - lse[None, :])
    visible = start + _ROWS <= keys
    if CAUSAL:
        visible = visible & (block * BLOCK >= start + _ROWS)
    if not visible:
        seen = key < keys
        seen = seen[:, None]
        if CAUSAL:
            query = block * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, SCORES))
            seen = seen & (key[:, None] <= query[None, :])
        p = gl.where(seen, p, 0.0)
    delta = shared_terms.index(2 * slot + 1).load(gl.SliceLayout(0, SCORES))
    dp = warpgroup_mma_wait(0, deps=[dp])
    given = (p * (dp - delta[None, :])).to(q.dtype)
    weights = gl.convert_layout(p.to(q.dtype), gl.DotOperandLayout(0, TOTAL, 2))
    dv = warpgroup_mma(weights, do, dv, is_async=True)
    # The other warpgroup has passed on the step before, so what is overwritten has been multiplied.
    mbarrier.wait(full.index(step % 2), (step // 2) & 1)
    ds.index(2 * ((step + 1) % _PASSED) + PART).store(given)
    fence_async_shared()
    mbarrier.arrive(full.index((step + 1) % 2), count=1)
    dk = warpgroup_mma(gl.convert_layout(given, gl.DotOperandLayout(0, TOTAL, 2)), q, dk, is_async=True)
    dq = _start_dq(step, ds, ks, PART, COLUMNS, DQ)
    row = block * BLOCK + gl.arange(0, PART_ROWS, layout=gl.SliceLayout(1, DQ))
    if COLUMNS == PART_COLUMNS:
        row += PART * PART_ROWS
    inverse = gl.load(terms_ptr + 2 * rows + row)
    dk, dv, dq = warpgroup_mma_wait(0, deps=[dk, dv, dq])
    mbarrier.arrive(free.index(slot), count=1)
    return dk, dv, dq, row_units(inverse, inverse_key, value_units), place, units, before


@gluon.jit
def _largest(bounds_ptr, parts):
    """The largest of the bounds of a head's keys."""
    LANES: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    largest = gl.zeros([128], gl.float32, LANES)
    for start in range(0, parts, 128):
        part = start + gl.arange(0, 128, layout=LANES)
        largest = gl.maximum(largest, gl.load(bounds_ptr + part, mask=part < parts, other=0.0))
    return gl.max(largest, 0)


@gluon.jit
def _gather(
    PART: gl.constexpr, dk_tiles, dv_tiles, sum_tiles, qs, dos, ks, vs, shared_terms, terms_ptr, ds, sums, ready, free, full,
    batch, kv_head, kv_heads, start, first, blocks, keys, rows, scale, score_scale, inverse_key, value_units,
    GROUP: gl.constexpr, BLOCK: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
    LINES: gl.constexpr,
):  # fmt: skip
    """dK and dV of the keys of one warpgroup, and its share of what they add to dQ."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    TOTAL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    DQ: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PART_COLUMNS, 16])
    start += PART * _ROWS
    key = start + gl.arange(0, _ROWS, layout=gl.SliceLayout(1, SCORES))
    k = ks.index(PART).reshape([_ROWS, COLUMNS])
    v = vs.index(PART).reshape([_ROWS, COLUMNS])
    dv = gl.zeros([_ROWS, COLUMNS], gl.float32, TOTAL)
    dk = gl.zeros([_ROWS, COLUMNS], gl.float32, TOTAL)
    # Before the first step there are no gradients of scores: they are 0.
    units = gl.zeros([PART_ROWS], gl.float32, gl.SliceLayout(1, DQ))
    ds.index(PART).store(gl.zeros([_ROWS, BLOCK], qs.dtype, SCORES))
    fence_async_shared()
    mbarrier.arrive(full.index(0), count=1)
    mbarrier.wait(ready.index(0), 0)
    head = (batch * kv_heads + kv_head) * GROUP
    each = blocks - first
    before = head * (rows // BLOCK)
    units0, before0 = units, before
    dq = gl.zeros([PART_ROWS, PART_COLUMNS], gl.float32, DQ)
    for step in range(GROUP * each):
        block = first + step
        own = head
        if GROUP > 1:
            block = first + step % each
            own += step // each
        dk, dv, dq, units, before, units0, before0 = _gather_step(
            dk, dv, dq, units, before, units0, before0, k, v, ks, qs, dos, shared_terms,
            terms_ptr + 3 * own.to(gl.int64) * rows, ds, sums, sum_tiles, ready, free, full, key, start, block,
            own * (rows // BLOCK) + block, step, keys, rows, score_scale, inverse_key, value_units, PART, BLOCK, COLUMNS, STAGES, CAUSAL, SCORES, TOTAL, DQ, LINES,
        )  # fmt: skip
    _add_dq(dq, units0, sums, sum_tiles, before0, PART, LINES)
    mbarrier.wait(full.index(GROUP * each % 2), (GROUP * each // 2) & 1)
    dq = warpgroup_mma_wait(0, deps=[_start_dq(GROUP * each, ds, ks, PART, COLUMNS, DQ)])
    _add_dq(dq, units, sums, sum_tiles, before, PART, LINES)
    # Both warpgroups have multiplied all keys, and each the values that are its own.
    mbarrier.arrive(full.index((GROUP * each + 1) % 2), count=1)
    mbarrier.wait(full.index((GROUP * each + 1) % 2), ((GROUP * each + 1) // 2) & 1)
    _store_own(dv_tiles, dv, vs, batch, kv_head, start, PART, COLUMNS)
    _store_own(dk_tiles, dk * scale, ks, batch, kv_head, start, PART, COLUMNS)
    tma.store_wait(0)


@gluon.jit
def attention_backward_hopper_kernel(
    dk_tiles, dv_tiles, sum_tiles, do_tiles, q_tiles, k_tiles, v_tiles, terms_ptr, bounds_ptr, kv_heads, queries, keys, rows,
    parts, scale, score_scale,
    GROUP: gl.constexpr, COLUMNS: gl.constexpr, CAUSAL: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
    LINES: gl.constexpr,
):  # fmt: skip
    """dK and dV of 128 keys of one head, over all queries of the GROUP heads that share it, and what they add to dQ.

    Launched with 4 warps. Descriptors are of tensors (batch, heads, rows, COLUMNS) in 16 bits, those of q and do of BLOCK rows, the
    others of 64; that of the sums is of what a warpgroup adds at a time. BLOCK is 64, and 128 of 64 columns.
    """
    # The first keys are seen by the most queries: the order is right as it is.
    tiles = (keys + _PROGRAM - 1) // _PROGRAM
    start = gl.program_id(0) % tiles * _PROGRAM
    batch = gl.program_id(0) // tiles // kv_heads
    kv_head = gl.program_id(0) // tiles % kv_heads
    blocks = (queries + BLOCK - 1) // BLOCK
    first = start * 0
    if CAUSAL:
        first = gl.minimum(start // BLOCK, blocks)
    bounds_ptr += 2 * (batch * kv_heads + kv_head).to(gl.int64) * parts
    inverse_key, value_units = bound_units(_largest(bounds_ptr, parts), _largest(bounds_ptr + parts, parts))
    ks = gl.allocate_shared_memory(q_tiles.dtype, [2, 1, 1, _ROWS, COLUMNS], k_tiles.layout)
    vs = gl.allocate_shared_memory(q_tiles.dtype, [2, 1, 1, _ROWS, COLUMNS], v_tiles.layout)
    qs = gl.allocate_shared_memory(q_tiles.dtype, [STAGES, 1, 1, BLOCK, COLUMNS], q_tiles.layout)
    dos = gl.allocate_shared_memory(q_tiles.dtype, [STAGES, 1, 1, BLOCK, COLUMNS], do_tiles.layout)
    PASSED: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_ROWS, BLOCK], q_tiles.dtype)
    ds = gl.allocate_shared_memory(q_tiles.dtype, [2 * _PASSED, _ROWS, BLOCK], PASSED)
    sums = gl.allocate_shared_memory(gl.int32, [2, PART_ROWS * PART_COLUMNS // WIDTH, WIDTH], sum_tiles.layout)
    shared_terms = gl.allocate_shared_memory(gl.float32, [2 * STAGES, BLOCK], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(full.index(i), count=2)
    ready, free = _barriers(STAGES)
    gl.warp_specialize(
        [
            (_gather, (0, dk_tiles, dv_tiles, sum_tiles, qs, dos, ks, vs, shared_terms, terms_ptr, ds, sums, ready, free,
                       full, batch, kv_head, kv_heads, start, first, blocks, keys, rows, scale, score_scale, inverse_key, value_units,
                       GROUP, BLOCK, COLUMNS, STAGES, CAUSAL, LINES)),
            (_gather, (1, dk_tiles, dv_tiles, sum_tiles, qs, dos, ks, vs, shared_terms, terms_ptr, ds, sums, ready, free,
                       full, batch, kv_head, kv_heads, start, first, blocks, keys, rows, scale, score_scale, inverse_key, value_units,
                       GROUP, BLOCK, COLUMNS, STAGES, CAUSAL, LINES)),
            (_load_queries, (q_tiles, do_tiles, k_tiles, v_tiles, qs, dos, ks, vs, shared_terms, terms_ptr, ready, free, batch,
                             kv_head, kv_heads, start, first, blocks, rows, GROUP, BLOCK, STAGES)),
        ],
        [4, 1],
        [_MULTIPLYING, _LOADING],
    )  # fmt: skip
