"""Parts that attention's two one-pass backward kernels on Hopper share: a program's part of the work, its loads, and sums of dQ in memory."""

from __future__ import annotations

from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from tilescope_kernels.attention.hopper_backward_parts import PROGRAM, load_own
from tilescope_kernels.attention.hopper_backward_sums import bound_units

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
        # Of this head's tiles those from ``begin`` on that are among the ``steps`` of the program.
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
