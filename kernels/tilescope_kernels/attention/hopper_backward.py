"""Warp-specialized backward pass of attention on Hopper in one pass, for heads of up to 128 columns.

One warp loads and two warpgroups multiply, each with 64 keys of its own, as in FlashAttention-3 (Shah et al.,
arXiv:2407.08608). Scores are (keys, queries), so that P and dS are in registers for the products of dV and dK. For dQ the
warpgroups exchange dS through shared memory. The product of dQ runs a step late, and is added to memory while the tensor
cores compute the next scores. Sums of dQ in memory are integers (``hopper_backward_sums``), so gradients are deterministic.
"""

from __future__ import annotations

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

from tilescope_kernels.attention.hopper_backward_sums import bound_units, row_units

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
def load_block(a_tiles, b_tiles, as_, bs, ready, free, batch, head, place, step, STAGES: gl.constexpr):
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


#: Queries and columns of the part of dQ that a warpgroup adds at a time, and integers in a row of the sums' descriptor.
PART_ROWS, PART_COLUMNS, WIDTH = gl.constexpr(64), gl.constexpr(64), gl.constexpr(256)
#: Buffers of dS in shared memory: being written, being multiplied, and perhaps still multiplied by the other warpgroup.
PASSED_TILES = gl.constexpr(3)


@builtin
def add_shared_to_global(tiles, place, shared, _semantic=None):
    """TMA reduction: ``tma.async_copy_shared_to_global`` that adds."""
    kind = ir.DESCRIPTOR_REDUCE_KIND.ADD
    where = _semantic._convert_to_ir_values(place, require_i64=False)
    _semantic.builder.create_async_tma_reduce(kind, tiles.handle, where, shared.handle)


@gluon.jit
def _largest(bounds_ptr, parts):
    """Maximum of a head's bounds."""
    LANES: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    largest = gl.zeros([128], gl.float32, LANES)
    for start in range(0, parts, 128):
        part = start + gl.arange(0, 128, layout=LANES)
        largest = gl.maximum(largest, gl.load(bounds_ptr + part, mask=part < parts, other=0.0))
    return gl.max(largest, 0)


@gluon.jit
def own_part(
    bounds_ptr, kv_heads, queries, keys, parts, together, shares, GROUP: gl.constexpr, CAUSAL: gl.constexpr, BLOCK: gl.constexpr
):  # fmt: skip
    """A program's part of the work, and what its sums of dQ are rounded by.

    Returns its batch, head of the keys and first key; for each head of the queries the first tile of BLOCK queries that sees the keys, and
    the number of such tiles; of these tiles of all GROUP heads the first one of its share, and their number; the number of shares before
    its own; and the two units of ``bound_units``.
    """
    tiles = (keys + PROGRAM - 1) // PROGRAM
    share = gl.program_id(0) % shares
    program = gl.program_id(0) // shares
    if CAUSAL:
        # The first keys are seen by the most queries: their programs start first, for as many heads as L2 holds.
        first_head = program // (tiles * together) * together
        rest = program - first_head * tiles
        together = gl.minimum(together, gl.num_programs(0) // shares // tiles - first_head)
        start = rest // together * PROGRAM
        head = first_head + rest % together
    else:
        start = program % tiles * PROGRAM
        head = program // tiles
    batch = head // kv_heads
    kv_head = head % kv_heads
    blocks = (queries + BLOCK - 1) // BLOCK
    first = start * 0
    if CAUSAL:
        first = gl.minimum(start // BLOCK, blocks)
    each = blocks - first
    begin = share * (GROUP * each) // shares
    steps = (share + 1) * (GROUP * each) // shares - begin
    place = (head * tiles + start // PROGRAM) * shares + share
    bounds_ptr += 2 * (batch * kv_heads + kv_head).to(gl.int64) * parts
    inverse_key, value_units = bound_units(_largest(bounds_ptr, parts), _largest(bounds_ptr + parts, parts))
    return batch, kv_head, start, first, each, begin, steps, place, inverse_key, value_units


@gluon.jit
def load_queries(
    q_tiles, do_tiles, k_tiles, v_tiles, qs, dos, ks, vs, shared_terms, terms_ptr, ready, free, batch, kv_head, kv_heads,
    start, first, each, begin, steps, rows, GROUP: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Producer warp: load both warpgroups' keys and values, then tiles of q and do with their lse and delta."""
    LANES: gl.constexpr = gl.BlockedLayout([BLOCK // 32], [32], [1], [0])
    load_own(k_tiles, v_tiles, ks, vs, ready, batch, kv_head, start)
    terms_ptr += 3 * (batch * kv_heads + kv_head).to(gl.int64) * GROUP * rows
    step = first * 0
    for member in range(GROUP):
        head = kv_head * GROUP + member
        # The program takes this head's tiles from ``begin`` on, as far as they are among its ``steps``.
        low = gl.maximum(begin - member * each, 0)
        high = gl.minimum(begin + steps - member * each, each)
        for block in range(first + low, first + high):
            slot = step % STAGES
            query = terms_ptr + block * BLOCK + gl.arange(0, BLOCK, layout=LANES)
            lse, delta = gl.load(query), gl.load(query + rows)
            # Every stage starts free: on a fresh mbarrier a wait for the previous phase returns at once.
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
def hidden_zero(step):
    """A 0 that is opaque to the compiler, which else hoists addresses of the resident tiles out of the loop and spills them."""
    return gl.inline_asm_elementwise("mov.u32 $0, 0; // $1", "=r,r", [step], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def _start_dq(step, ds, ks, hidden, PART: gl.constexpr, COLUMNS: gl.constexpr, DQ: gl.constexpr):
    """Start the previous step's product for this warpgroup's share of dQ: half the columns or, with 64, half the queries."""
    dq = gl.zeros([PART_ROWS, PART_COLUMNS], gl.float32, DQ)
    for group in gl.static_range(2):
        given = ds.index(2 * (step % PASSED_TILES) + group)
        k = ks.index(group + hidden).reshape([ROWS, COLUMNS])
        if COLUMNS == PART_COLUMNS:
            given = given.slice(PART * PART_ROWS, PART_ROWS, dim=1)
        else:
            k = k.slice(PART * PART_COLUMNS, PART_COLUMNS, dim=1)
        dq = warpgroup_mma(given.permute([1, 0]), k, dq, use_acc=group > 0, is_async=True)
    return dq


@gluon.jit
def _add_dq(dq, units, sums, sum_tiles, place, PART: gl.constexpr, LINES: gl.constexpr):
    """Round a part of dQ to integers and add it to the sums in memory, in the order of the threads' registers."""
    whole = gl.inline_asm_elementwise(
        "cvt.rni.s32.f32 $0, $1;", "=r,f", [dq * units[:, None]], dtype=gl.int32, is_pure=True, pack=1
    )
    tma.store_wait(0)
    sums.index(PART)._reinterpret(gl.int32, [PART_ROWS, PART_COLUMNS], LINES).store(whole)
    fence_async_shared()
    add_shared_to_global(sum_tiles, [(2 * place + PART) * (PART_ROWS * PART_COLUMNS // WIDTH), 0], sums.index(PART))


@gluon.jit
def _gather_step(
    dk, dv, dq, units, before, units0, before0, ks, vs, qs, dos, shared_terms, terms_ptr, ds, sums, sum_tiles, ready, free, full, key, start,
    block, place, step, keys, rows, score_scale, inverse_key, value_units,
    PART: gl.constexpr, BLOCK: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
    SCORES: gl.constexpr, TOTAL: gl.constexpr, DQ: gl.constexpr, LINES: gl.constexpr,
):  # fmt: skip
    """Accumulate a tile of queries into dK and dV, compute dQ of the previous tile, and store that of the one before."""
    slot = step % STAGES
    mbarrier.wait(ready.index(1 + slot), (step // STAGES) & 1)
    hidden = hidden_zero(step)
    k = ks.index(PART + hidden).reshape([ROWS, COLUMNS])
    v = vs.index(PART + hidden).reshape([ROWS, COLUMNS])
    q = qs.index(slot).reshape([BLOCK, COLUMNS])
    do = dos.index(slot).reshape([BLOCK, COLUMNS])
    none = gl.zeros([ROWS, BLOCK], gl.float32, SCORES)
    # With 128 columns too few registers are free to start the next product before dQ is stored. With 64 columns the other order is
    # faster.
    if COLUMNS > PART_COLUMNS:
        _add_dq(dq, units0, sums, sum_tiles, before0, PART, LINES)
    scores = warpgroup_mma(k, q.permute([1, 0]), none, use_acc=False, is_async=True)
    if COLUMNS == PART_COLUMNS:
        _add_dq(dq, units0, sums, sum_tiles, before0, PART, LINES)
    dp = warpgroup_mma(v, do.permute([1, 0]), none, use_acc=False, is_async=True)
    lse = shared_terms.index(2 * slot).load(gl.SliceLayout(0, SCORES))
    scores = warpgroup_mma_wait(1, deps=[scores])
    p = gl.exp2(scores * score_scale - lse[None, :])
    visible = start + ROWS <= keys
    if CAUSAL:
        visible = visible & (block * BLOCK >= start + ROWS)
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
    # Once the other warpgroup has written the previous dS, it has multiplied the buffer that is overwritten next.
    mbarrier.wait(full.index(step % 2), (step // 2) & 1)
    ds.index(2 * ((step + 1) % PASSED_TILES) + PART).store(given)
    fence_async_shared()
    mbarrier.arrive(full.index((step + 1) % 2), count=1)
    dk = warpgroup_mma(gl.convert_layout(given, gl.DotOperandLayout(0, TOTAL, 2)), q, dk, is_async=True)
    dq = _start_dq(step, ds, ks, hidden, PART, COLUMNS, DQ)
    row = block * BLOCK + gl.arange(0, PART_ROWS, layout=gl.SliceLayout(1, DQ))
    if COLUMNS == PART_COLUMNS:
        row += PART * PART_ROWS
    inverse = gl.load(terms_ptr + 2 * rows + row)
    dk, dv, dq = warpgroup_mma_wait(0, deps=[dk, dv, dq])
    mbarrier.arrive(free.index(slot), count=1)
    return dk, dv, dq, row_units(inverse, inverse_key, value_units), place, units, before


@gluon.jit
def _store_share(shares_ptr, total, place, columns, PART: gl.constexpr, COLUMNS: gl.constexpr):
    """Store one warpgroup's rows of a share of dK or dV, of which each program has two tiles, in fp32."""
    row = PART * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, total.type.layout))[:, None]
    column = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, total.type.layout))[None, :]
    shares_ptr += place.to(gl.int64) * (PROGRAM * COLUMNS)
    gl.store(shares_ptr + row * COLUMNS + column, total, mask=column < columns)


@gluon.jit
def _gather(
    PART: gl.constexpr, dk_tiles, dv_tiles, shares_ptr, sum_tiles, qs, dos, ks, vs, shared_terms, terms_ptr, ds, sums, ready, free, full,
    batch, kv_head, kv_heads, start, first, each, begin, steps, place, columns, keys, rows, scale, score_scale, inverse_key, value_units,
    GROUP: gl.constexpr, BLOCK: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
    LINES: gl.constexpr,
):  # fmt: skip
    """Consumer warpgroup: compute dK and dV of its 64 keys, and its share of the program's part of dQ."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    TOTAL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    DQ: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PART_COLUMNS, 16])
    start += PART * ROWS
    key = start + gl.arange(0, ROWS, layout=gl.SliceLayout(1, SCORES))
    dv = gl.zeros([ROWS, COLUMNS], gl.float32, TOTAL)
    dk = gl.zeros([ROWS, COLUMNS], gl.float32, TOTAL)
    # The first step multiplies the dS of a step before it: zeros.
    units = gl.zeros([PART_ROWS], gl.float32, gl.SliceLayout(1, DQ))
    ds.index(PART).store(gl.zeros([ROWS, BLOCK], qs.dtype, SCORES))
    fence_async_shared()
    mbarrier.arrive(full.index(0), count=1)
    mbarrier.wait(ready.index(0), 0)
    head = (batch * kv_heads + kv_head) * GROUP
    before = head * (rows // BLOCK)
    units0, before0 = units, before
    dq = gl.zeros([PART_ROWS, PART_COLUMNS], gl.float32, DQ)
    for step in range(steps):
        block, member = block_of(begin + step, first, each, GROUP)
        own = head + member
        dk, dv, dq, units, before, units0, before0 = _gather_step(
            dk, dv, dq, units, before, units0, before0, ks, vs, qs, dos, shared_terms,
            terms_ptr + 3 * own.to(gl.int64) * rows, ds, sums, sum_tiles, ready, free, full, key, start, block,
            own * (rows // BLOCK) + block, step, keys, rows, score_scale, inverse_key, value_units, PART, BLOCK, COLUMNS, STAGES, CAUSAL, SCORES, TOTAL, DQ, LINES,
        )  # fmt: skip
    _add_dq(dq, units0, sums, sum_tiles, before0, PART, LINES)
    mbarrier.wait(full.index(steps % 2), (steps // 2) & 1)
    dq = warpgroup_mma_wait(0, deps=[_start_dq(steps, ds, ks, 0, PART, COLUMNS, DQ)])
    _add_dq(dq, units, sums, sum_tiles, before, PART, LINES)
    if shares_ptr is None:
        # Wait until both warpgroups have read all keys, whose shared memory dK is stored through.
        mbarrier.arrive(full.index((steps + 1) % 2), count=1)
        mbarrier.wait(full.index((steps + 1) % 2), ((steps + 1) // 2) & 1)
        store_own(dv_tiles, dv, vs, batch, kv_head, start, PART, COLUMNS)
        store_own(dk_tiles, dk * scale, ks, batch, kv_head, start, PART, COLUMNS)
    else:
        _store_share(shares_ptr, dk * scale, 2 * place, columns, PART, COLUMNS)
        _store_share(shares_ptr, dv, 2 * place + 1, columns, PART, COLUMNS)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["queries", "keys", "parts", "together"])
def attention_backward_hopper_kernel(
    dk_tiles, dv_tiles, shares_ptr, sum_tiles, do_tiles, q_tiles, k_tiles, v_tiles, terms_ptr, bounds_ptr, kv_heads, queries, keys,
    rows, parts, together, shares, eighths, scale, score_scale,
    GROUP: gl.constexpr, COLUMNS: gl.constexpr, CAUSAL: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
    LINES: gl.constexpr,
):  # fmt: skip
    """Compute dK and dV of 128 keys of one head per program, over all queries of the GROUP heads that share it, and add to dQ.

    Launch with 4 warps. Descriptors are of 16-bit tensors (batch, heads, rows, COLUMNS), with BLOCK rows a tile for q and do, and 64
    for the others. BLOCK is 64, or 128 with 64 columns. ``sum_tiles`` has tiles of the part of dQ that a warpgroup adds at a time.
    ``together`` is the number of heads whose programs run at the same time under a causal mask. ``shares`` programs share the queries
    of a tile of keys. With more than one, ``shares_ptr`` (batch, kv_heads, tiles, shares, 2, 128, COLUMNS) in fp32 receives their parts of
    dK and dV, of which 8 * ``eighths`` columns are stored; else it is None.
    """
    batch, kv_head, start, first, each, begin, steps, place, inverse_key, value_units = own_part(
        bounds_ptr, kv_heads, queries, keys, parts, together, shares, GROUP, CAUSAL, BLOCK
    )
    ks = gl.allocate_shared_memory(q_tiles.dtype, [2, 1, 1, ROWS, COLUMNS], k_tiles.layout)
    vs = gl.allocate_shared_memory(q_tiles.dtype, [2, 1, 1, ROWS, COLUMNS], v_tiles.layout)
    qs = gl.allocate_shared_memory(q_tiles.dtype, [STAGES, 1, 1, BLOCK, COLUMNS], q_tiles.layout)
    dos = gl.allocate_shared_memory(q_tiles.dtype, [STAGES, 1, 1, BLOCK, COLUMNS], do_tiles.layout)
    PASSED: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, BLOCK], q_tiles.dtype)
    ds = gl.allocate_shared_memory(q_tiles.dtype, [2 * PASSED_TILES, ROWS, BLOCK], PASSED)
    sums = gl.allocate_shared_memory(gl.int32, [2, PART_ROWS * PART_COLUMNS // WIDTH, WIDTH], sum_tiles.layout)
    shared_terms = gl.allocate_shared_memory(gl.float32, [2 * STAGES, BLOCK], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(full.index(i), count=2)
    ready, free = barriers(STAGES)
    gl.warp_specialize(
        [
            (_gather, (0, dk_tiles, dv_tiles, shares_ptr, sum_tiles, qs, dos, ks, vs, shared_terms, terms_ptr, ds, sums, ready, free,
                       full, batch, kv_head, kv_heads, start, first, each, begin, steps, place, 8 * eighths, keys, rows, scale, score_scale,
                       inverse_key, value_units,
                       GROUP, BLOCK, COLUMNS, STAGES, CAUSAL, LINES)),
            (_gather, (1, dk_tiles, dv_tiles, shares_ptr, sum_tiles, qs, dos, ks, vs, shared_terms, terms_ptr, ds, sums, ready, free,
                       full, batch, kv_head, kv_heads, start, first, each, begin, steps, place, 8 * eighths, keys, rows, scale, score_scale,
                       inverse_key, value_units,
                       GROUP, BLOCK, COLUMNS, STAGES, CAUSAL, LINES)),
            (load_queries, (q_tiles, do_tiles, k_tiles, v_tiles, qs, dos, ks, vs, shared_terms, terms_ptr, ready, free, batch,
                             kv_head, kv_heads, start, first, each, begin, steps, rows, GROUP, BLOCK, STAGES)),
        ],
        [4, 1],
        [MULTIPLYING, LOADING],
    )  # fmt: skip
