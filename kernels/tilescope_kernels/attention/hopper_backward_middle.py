"""Warp-specialized backward pass of attention on Hopper in one pass, for heads of 65 to 96 columns.

As ``hopper_backward``, whose tiles in shared memory have 128 columns. What tensor cores multiply, and what is added up in memory, has 80
or 96: tensors have a power of two of columns, so every product is one of the first 64 columns and one of the TAIL of 16 or 32. The registers
that this leaves hold the warpgroup's keys, the left operand of the scores.

Keys stay in registers and values do not: with both, registers spill at 96 columns.
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

from tilescope_kernels.attention.hopper_backward_one_pass import (
    PART_ROWS,
    PASSED_TILES,
    WIDTH,
    add_shared_to_global,
    hidden_zero,
    load_queries,
    own_part,
)
from tilescope_kernels.attention.hopper_backward_parts import LOADING, MULTIPLYING, PROGRAM, ROWS, barriers, block_of
from tilescope_kernels.attention.hopper_backward_sums import row_units

#: Columns of a tile in shared memory and of its first part, and queries of a tile.
_COLUMNS, HEAD, _BLOCK = gl.constexpr(128), gl.constexpr(64), gl.constexpr(64)


def tail(columns: int) -> int:
    """Columns beside the first 64 that a head of 65 to 96 is padded to."""
    return 16 if columns <= 80 else 32


@gluon.jit
def _halves(tile, TAIL: gl.constexpr):
    """The first 64 columns of a tile (1, 1, 64, 128) in shared memory, and the TAIL after them: of the second swizzled half."""
    tile = tile.reshape([ROWS, _COLUMNS])
    return tile.slice(0, HEAD, dim=1), tile.slice(HEAD, TAIL, dim=1)


@gluon.jit
def _start_scores(head, tail, b, SCORES: gl.constexpr, TAIL: gl.constexpr):
    """Start the product of both parts of a tile with the transpose of another one: two groups of wgmma."""
    b_head, b_tail = _halves(b, TAIL)
    none = gl.zeros([ROWS, _BLOCK], gl.float32, SCORES)
    product = warpgroup_mma(head, b_head.permute([1, 0]), none, use_acc=False, is_async=True)
    return warpgroup_mma(tail, b_tail.permute([1, 0]), product, is_async=True)


@gluon.jit
def _start_sums(weights, tile, head, tail, TAIL: gl.constexpr):
    """Start to add the product of weights (keys, queries) with a tile of queries to both parts of dK or dV."""
    of_head, of_tail = _halves(tile, TAIL)
    weights_head = gl.convert_layout(weights, gl.DotOperandLayout(0, head.type.layout, 2))
    weights_tail = gl.convert_layout(weights, gl.DotOperandLayout(0, tail.type.layout, 2))
    head = warpgroup_mma(weights_head, of_head, head, is_async=True)
    return head, warpgroup_mma(weights_tail, of_tail, tail, is_async=True)


@gluon.jit
def _start_dq(step, ds, ks, hidden, PART: gl.constexpr, TAIL: gl.constexpr, DQ: gl.constexpr):
    """Start the previous step's product for this warpgroup's columns of dQ: the first 64, or the TAIL."""
    dq = gl.zeros([PART_ROWS, HEAD if PART == 0 else TAIL], gl.float32, DQ)
    for group in gl.static_range(2):
        given = ds.index(2 * (step % PASSED_TILES) + group).permute([1, 0])
        k = _halves(ks.index(group + hidden), TAIL)[PART]
        dq = warpgroup_mma(given, k, dq, use_acc=group > 0, is_async=True)
    return dq


@gluon.jit
def _add_dq(dq, units, sums, sum_tiles, place, PART: gl.constexpr, TAIL: gl.constexpr, LINES: gl.constexpr):
    """Round a part of dQ to integers and add it to the sums in memory, in the order of the threads' registers.

    The sums of a tile of queries, of which ``place`` lie before it, are those of the first 64 columns, then those of the TAIL.
    """
    whole = gl.inline_asm_elementwise(
        "cvt.rni.s32.f32 $0, $1;", "=r,f", [dq * units[:, None]], dtype=gl.int32, is_pure=True, pack=1
    )
    tma.store_wait(0)
    sums._reinterpret(gl.int32, [PART_ROWS, dq.shape[1]], LINES).store(whole)
    fence_async_shared()
    row = place * (PART_ROWS * (HEAD + TAIL) // WIDTH) + PART * (PART_ROWS * HEAD // WIDTH)
    add_shared_to_global(sum_tiles, [row, 0], sums)


@gluon.jit
def _gather_step(
    k_head, k_tail, dk, dk_tail, dv, dv_tail, dq, units, before, units0, before0, ks, vs, qs, dos, shared_terms, terms_ptr, ds, sums, sum_tiles,
    ready, free, full, key, start, block, place, step, keys, rows, score_scale, inverse_key, value_units,
    PART: gl.constexpr, TAIL: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
    SCORES: gl.constexpr, DQ: gl.constexpr, LINES: gl.constexpr,
):  # fmt: skip
    """Accumulate a tile of queries into dK and dV, compute dQ of the previous tile, and store that of the one before."""
    slot = step % STAGES
    mbarrier.wait(ready.index(1 + slot), (step // STAGES) & 1)
    hidden = hidden_zero(step)
    q = qs.index(slot)
    do = dos.index(slot)
    scores = _start_scores(k_head, k_tail, q, SCORES, TAIL)
    _add_dq(dq, units0, sums, sum_tiles, before0, PART, TAIL, LINES)
    v_head, v_tail = _halves(vs.index(PART + hidden), TAIL)
    dp = _start_scores(v_head, v_tail, do, SCORES, TAIL)
    lse = shared_terms.index(2 * slot).load(gl.SliceLayout(0, SCORES))
    scores = warpgroup_mma_wait(2, deps=[scores])
    p = gl.exp2(scores * score_scale - lse[None, :])
    visible = start + ROWS <= keys
    if CAUSAL:
        visible = visible & (block * _BLOCK >= start + ROWS)
    if not visible:
        seen = key < keys
        seen = seen[:, None]
        if CAUSAL:
            query = block * _BLOCK + gl.arange(0, _BLOCK, layout=gl.SliceLayout(0, SCORES))
            seen = seen & (key[:, None] <= query[None, :])
        p = gl.where(seen, p, 0.0)
    delta = shared_terms.index(2 * slot + 1).load(gl.SliceLayout(0, SCORES))
    dp = warpgroup_mma_wait(0, deps=[dp])
    given = (p * (dp - delta[None, :])).to(q.dtype)
    dv, dv_tail = _start_sums(p.to(q.dtype), do, dv, dv_tail, TAIL)
    # Once the other warpgroup has written the previous dS, it has multiplied the buffer that is overwritten next.
    mbarrier.wait(full.index(step % 2), (step // 2) & 1)
    ds.index(2 * ((step + 1) % PASSED_TILES) + PART).store(given)
    fence_async_shared()
    mbarrier.arrive(full.index((step + 1) % 2), count=1)
    dk, dk_tail = _start_sums(given, q, dk, dk_tail, TAIL)
    dq = _start_dq(step, ds, ks, hidden, PART, TAIL, DQ)
    inverse = gl.load(terms_ptr + 2 * rows + block * _BLOCK + gl.arange(0, PART_ROWS, layout=gl.SliceLayout(1, DQ)))
    dk, dk_tail, dv, dv_tail, dq = warpgroup_mma_wait(0, deps=[dk, dk_tail, dv, dv_tail, dq])
    mbarrier.arrive(free.index(slot), count=1)
    return dk, dk_tail, dv, dv_tail, dq, row_units(inverse, inverse_key, value_units), place, units, before


@gluon.jit
def _store_share(shares_ptr, total, place, first, columns, PART: gl.constexpr, TAIL: gl.constexpr):
    """Store one warpgroup's rows of a share of dK or dV, from column ``first`` on. Each program has two tiles, in fp32."""
    row = PART * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, total.type.layout))[:, None]
    column = first + gl.arange(0, total.shape[1], layout=gl.SliceLayout(0, total.type.layout))[None, :]
    shares_ptr += place.to(gl.int64) * (PROGRAM * (HEAD + TAIL))
    gl.store(shares_ptr + row * (HEAD + TAIL) + column, total, mask=column < columns)


@gluon.jit
def _store_own(out_tiles, head, tail, shared, batch, kv_head, start, TAIL: gl.constexpr):
    """Start storing one warpgroup's rows through shared memory. TMA clips rows and columns past the end."""
    of_head, of_tail = _halves(shared, TAIL)
    of_head.store(head.to(shared.dtype))
    of_tail.store(tail.to(shared.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(out_tiles, [batch, kv_head, start, 0], shared)


@gluon.jit
def _gather(
    PART: gl.constexpr, dk_tiles, dv_tiles, shares_ptr, sum_tiles, qs, dos, ks, vs, shared_terms, terms_ptr, ds, sums, ready, free, full,
    batch, kv_head, kv_heads, start, first, each, begin, steps, place, columns, keys, rows, scale, score_scale, inverse_key, value_units,
    GROUP: gl.constexpr, TAIL: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr, LINES: gl.constexpr,
):  # fmt: skip
    """Consumer warpgroup: compute dK and dV of its 64 keys, and its columns of the program's part of dQ."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _BLOCK, 16])
    OF_HEAD: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD, 16])
    OF_TAIL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TAIL, 16])
    DQ: gl.constexpr = OF_HEAD if PART == 0 else OF_TAIL
    start += PART * ROWS
    key = start + gl.arange(0, ROWS, layout=gl.SliceLayout(1, SCORES))
    dv = gl.zeros([ROWS, HEAD], gl.float32, OF_HEAD)
    dk = gl.zeros([ROWS, HEAD], gl.float32, OF_HEAD)
    dv_tail = gl.zeros([ROWS, TAIL], gl.float32, OF_TAIL)
    dk_tail = gl.zeros([ROWS, TAIL], gl.float32, OF_TAIL)
    # The first step multiplies the dS of a step before it: zeros.
    units = gl.zeros([PART_ROWS], gl.float32, gl.SliceLayout(1, DQ))
    ds.index(PART).store(gl.zeros([ROWS, _BLOCK], qs.dtype, SCORES))
    fence_async_shared()
    mbarrier.arrive(full.index(0), count=1)
    mbarrier.wait(ready.index(0), 0)
    head = (batch * kv_heads + kv_head) * GROUP
    before = head * (rows // _BLOCK)
    units0, before0 = units, before
    dq = gl.zeros([PART_ROWS, HEAD if PART == 0 else TAIL], gl.float32, DQ)
    of_head, of_tail = _halves(ks.index(PART), TAIL)
    k_head = of_head.load(gl.DotOperandLayout(0, SCORES, 2))
    k_tail = of_tail.load(gl.DotOperandLayout(0, SCORES, 2))
    for step in range(steps):
        block, member = block_of(begin + step, first, each, GROUP)
        own = head + member
        dk, dk_tail, dv, dv_tail, dq, units, before, units0, before0 = _gather_step(
            k_head, k_tail, dk, dk_tail, dv, dv_tail, dq, units, before, units0, before0, ks, vs, qs, dos, shared_terms,
            terms_ptr + 3 * own.to(gl.int64) * rows, ds, sums, sum_tiles, ready, free, full, key, start, block,
            own * (rows // _BLOCK) + block, step, keys, rows, score_scale, inverse_key, value_units,
            PART, TAIL, STAGES, CAUSAL, SCORES, DQ, LINES,
        )  # fmt: skip
    _add_dq(dq, units0, sums, sum_tiles, before0, PART, TAIL, LINES)
    mbarrier.wait(full.index(steps % 2), (steps // 2) & 1)
    dq = warpgroup_mma_wait(0, deps=[_start_dq(steps, ds, ks, 0, PART, TAIL, DQ)])
    _add_dq(dq, units, sums, sum_tiles, before, PART, TAIL, LINES)
    if shares_ptr is None:
        # Wait until both warpgroups have read all keys, whose shared memory dK is stored through.
        mbarrier.arrive(full.index((steps + 1) % 2), count=1)
        mbarrier.wait(full.index((steps + 1) % 2), ((steps + 1) // 2) & 1)
        _store_own(dv_tiles, dv, dv_tail, vs.index(PART), batch, kv_head, start, TAIL)
        _store_own(dk_tiles, dk * scale, dk_tail * scale, ks.index(PART), batch, kv_head, start, TAIL)
    else:
        _store_share(shares_ptr, dk * scale, 2 * place, 0, columns, PART, TAIL)
        _store_share(shares_ptr, dk_tail * scale, 2 * place, HEAD, columns, PART, TAIL)
        _store_share(shares_ptr, dv, 2 * place + 1, 0, columns, PART, TAIL)
        _store_share(shares_ptr, dv_tail, 2 * place + 1, HEAD, columns, PART, TAIL)
    tma.store_wait(0)


@gluon.jit
def attention_backward_middle_hopper_kernel(
    dk_tiles, dv_tiles, shares_ptr, sum_tiles, tail_sum_tiles, do_tiles, q_tiles, k_tiles, v_tiles, terms_ptr, bounds_ptr, kv_heads,
    queries, keys, rows, parts, together, shares, eighths, scale, score_scale,
    GROUP: gl.constexpr, TAIL: gl.constexpr, CAUSAL: gl.constexpr, STAGES: gl.constexpr, LINES: gl.constexpr, TAIL_LINES: gl.constexpr,
):  # fmt: skip
    """Compute dK and dV of 128 keys of one head per program, over all queries of the GROUP heads that share it, and add to dQ.

    Launch with 4 warps. As ``attention_backward_hopper_kernel``, with tiles of 128 columns and 64 rows, but for ``shares_ptr`` (batch,
    kv_heads, tiles, shares, 2, 128, 64 + TAIL). ``sum_tiles`` has tiles of the sums of 64 columns of dQ, ``tail_sum_tiles`` of the others.
    """
    batch, kv_head, start, first, each, begin, steps, place, inverse_key, value_units = own_part(
        bounds_ptr, kv_heads, queries, keys, parts, together, shares, GROUP, CAUSAL, _BLOCK
    )
    ks = gl.allocate_shared_memory(q_tiles.dtype, [2, 1, 1, ROWS, _COLUMNS], k_tiles.layout)
    vs = gl.allocate_shared_memory(q_tiles.dtype, [2, 1, 1, ROWS, _COLUMNS], v_tiles.layout)
    qs = gl.allocate_shared_memory(q_tiles.dtype, [STAGES, 1, 1, _BLOCK, _COLUMNS], q_tiles.layout)
    dos = gl.allocate_shared_memory(q_tiles.dtype, [STAGES, 1, 1, _BLOCK, _COLUMNS], do_tiles.layout)
    PASSED: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, _BLOCK], q_tiles.dtype)
    ds = gl.allocate_shared_memory(q_tiles.dtype, [2 * PASSED_TILES, ROWS, _BLOCK], PASSED)
    sums = gl.allocate_shared_memory(gl.int32, [PART_ROWS * HEAD // WIDTH, WIDTH], sum_tiles.layout)
    tail_sums = gl.allocate_shared_memory(gl.int32, [PART_ROWS * TAIL // WIDTH, WIDTH], tail_sum_tiles.layout)
    shared_terms = gl.allocate_shared_memory(gl.float32, [2 * STAGES, _BLOCK], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(full.index(i), count=2)
    ready, free = barriers(STAGES)
    gl.warp_specialize(
        [
            (_gather, (0, dk_tiles, dv_tiles, shares_ptr, sum_tiles, qs, dos, ks, vs, shared_terms, terms_ptr, ds, sums, ready, free,
                       full, batch, kv_head, kv_heads, start, first, each, begin, steps, place, 8 * eighths, keys, rows, scale, score_scale,
                       inverse_key, value_units, GROUP, TAIL, STAGES, CAUSAL, LINES)),
            (_gather, (1, dk_tiles, dv_tiles, shares_ptr, tail_sum_tiles, qs, dos, ks, vs, shared_terms, terms_ptr, ds, tail_sums, ready,
                       free, full, batch, kv_head, kv_heads, start, first, each, begin, steps, place, 8 * eighths, keys, rows, scale,
                       score_scale, inverse_key, value_units, GROUP, TAIL, STAGES, CAUSAL, TAIL_LINES)),
            (load_queries, (q_tiles, do_tiles, k_tiles, v_tiles, qs, dos, ks, vs, shared_terms, terms_ptr, ready, free, batch,
                             kv_head, kv_heads, start, first, each, begin, steps, rows, GROUP, _BLOCK, STAGES)),
        ],
        [4, 1],
        [MULTIPLYING, LOADING],
    )  # fmt: skip
