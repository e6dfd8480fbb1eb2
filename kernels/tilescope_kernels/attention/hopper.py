"""Warp-specialized forward pass of attention on Hopper: FlashAttention-3 (Shah et al., arXiv:2407.08608).

One warp loads through TMA. Two warpgroups multiply, or three for heads of 64 columns, with 64 queries each. A warpgroup
computes the softmax of one tile of keys while the tensor cores multiply the previous tile's values. Programs may compute
several tiles of queries: the next tile's queries and first keys are loaded while a tile's output is computed and stored.
Written in Gluon: with Triton's own warp specialization this loop compiles but hangs on an H200 (triton 3.6).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

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
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tilescope_kernels._shared.launching import cdiv, launch, multiprocessors, next_power_of_2
from tilescope_kernels._shared.plans import Form, Write
from tilescope_kernels.attention.attention_configs import padded

#: Queries per warpgroup, the M of a wgmma instruction, and per program with two and with three warpgroups.
_ROWS = gl.constexpr(64)
QUERIES, MORE_QUERIES = gl.constexpr(128), gl.constexpr(192)
#: Registers per thread: of two multiplying warpgroups, of three, and of the loading warp. Together they fill the SM's register file.
_OF_TWO, _OF_THREE, _LOADING = gl.constexpr(240), gl.constexpr(160), gl.constexpr(24)
#: Bytes of keys and values whose heads lie side by side in tiles of three warpgroups: about half of an H200's L2.
_L2 = 24 << 20


@functools.cache
def lines(columns: int) -> gl.SharedLinearLayout:
    """Layout in shared memory of an accumulator of a warpgroup, 64 x ``columns``, at least 16 and a power of two.

    It has 16 bytes of each thread's registers, then the next 16 of each.
    """
    within = [[0, 1], [8, 0], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0], [16, 0], [32, 0]]
    return gl.SharedLinearLayout(within + [[0, 1 << bit] for bit in range(3, columns.bit_length() - 1)])


LINES = lines(64)


@functools.cache
def _shared(rows: int, columns: int, dtype: torch.dtype) -> tuple[list[int], gl.NVMMASharedLayout]:
    """Block shape and shared-memory layout of a descriptor, cached because computing them takes longer than many launches."""
    block = [1, 1, rows, padded(columns)]
    kind = gl.bfloat16 if dtype == torch.bfloat16 else gl.float16
    return block, gl.NVMMASharedLayout.get_default_for(block, kind)


def tiles(tensor: torch.Tensor, rows: int = _ROWS.value) -> Form:
    """Form of TMA descriptors of 16-bit tensors (batch, heads, rows, columns), with tiles (1, 1, rows, padded columns); 64 rows for a warpgroup.

    Loads fill the padding with zeros, stores skip it.
    """
    block, layout = _shared(rows, tensor.shape[3], tensor.dtype)
    return Form(TensorDescriptor, list(tensor.shape), list(tensor.stride()), block, layout=layout)


@gluon.jit
def _in_wave(wave, CAUSAL: gl.constexpr):
    """This program's tile in a wave. Under a causal mask each wave goes from long tiles to short ones: every other runs backwards."""
    programs = gl.num_programs(0)
    program = gl.program_id(0)
    if CAUSAL:
        program = gl.where(wave % 2 == 0, program, programs - 1 - program)
    return wave * programs + program


@gluon.jit
def _waves(queries, places, QUERIES: gl.constexpr, CAUSAL: gl.constexpr):
    """Number of tiles of queries that this program computes."""
    tiles = (queries + QUERIES - 1) // QUERIES * places
    waves = (tiles + gl.num_programs(0) - 1) // gl.num_programs(0)
    return gl.where(_in_wave(waves - 1, CAUSAL) < tiles, waves, waves - 1)


@gluon.jit
def _tile(
    wave, queries, keys, heads, places, together, BLOCK: gl.constexpr, CAUSAL: gl.constexpr, QUERIES: gl.constexpr
):  # fmt: skip
    """Batch, head and first query of a wave's tile, tiles of keys that its queries see, and how many of those need no mask.

    ``together`` of the ``places`` heads lie side by side, their last queries first: under a causal mask those see the most keys.
    """
    blocks = (queries + QUERIES - 1) // QUERIES
    tile = _in_wave(wave, CAUSAL)
    first = tile // (blocks * together) * together
    tile -= first * blocks
    together = gl.minimum(together, places - first)
    start = (blocks - 1 - tile // together) * QUERIES
    place = first + tile % together
    end = keys
    whole = keys // BLOCK
    if CAUSAL:
        end = gl.minimum(keys, start + QUERIES)
        whole = gl.minimum(keys, start + 1) // BLOCK
    return place // heads, place % heads, start, (end + BLOCK - 1) // BLOCK, whole


@gluon.jit
def _load(
    q_tiles, k_tiles, v_tiles, qs, ks, vs, ready, free, q_ready, q_free, queries, keys, heads, places, together,
    GROUP: gl.constexpr, CAUSAL: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr, WARPGROUPS: gl.constexpr,
):  # fmt: skip
    """Producer warp: for each tile load the queries of all warpgroups, then tiles of keys and values from last to first."""
    QUERIES: gl.constexpr = _ROWS * WARPGROUPS
    step = 0
    for wave in range(_waves(queries, places, QUERIES, CAUSAL)):
        batch, head, start, steps, _ = _tile(wave, queries, keys, heads, places, together, BLOCK, CAUSAL, QUERIES)
        # Every stage starts free: on a fresh mbarrier a wait for the previous phase returns at once.
        mbarrier.wait(q_free.index(wave % 2), (wave // 2) & 1 ^ 1)
        arrived = q_ready.index(wave % 2)
        mbarrier.expect(arrived, WARPGROUPS * q_tiles.block_type.nbytes)
        for group in gl.static_range(WARPGROUPS):
            slot = wave % 2 * (qs.shape[0] // 2) + group
            tma.async_copy_global_to_shared(q_tiles, [batch, head, start + group * _ROWS, 0], arrived, qs.index(slot))
        for later in range(steps):
            slot = step % STAGES
            phase = (step // STAGES) & 1 ^ 1
            place = (steps - 1 - later) * BLOCK
            arrived = ready.index(slot)
            mbarrier.wait(free.index(slot), phase)
            mbarrier.expect(arrived, k_tiles.block_type.nbytes)
            tma.async_copy_global_to_shared(k_tiles, [batch, head // GROUP, place, 0], arrived, ks.index(slot))
            arrived = ready.index(STAGES + slot)
            mbarrier.wait(free.index(STAGES + slot), phase)
            mbarrier.expect(arrived, v_tiles.block_type.nbytes)
            tma.async_copy_global_to_shared(v_tiles, [batch, head // GROUP, place, 0], arrived, vs.index(slot))
            step += 1


@gluon.jit
def _score(q, ks, slot, BLOCK: gl.constexpr, COLUMNS: gl.constexpr, SCORES: gl.constexpr):
    """Start the product of the queries with a tile of keys, asynchronously."""
    k = ks.index(slot).reshape([BLOCK, COLUMNS]).permute([1, 0])
    return warpgroup_mma(q, k, gl.zeros([_ROWS, BLOCK], gl.float32, SCORES), use_acc=False, is_async=True)


@gluon.jit
def _weigh(scores, largest, seen, start, masked, score_scale, SCORES: gl.constexpr):
    """Online softmax of a tile, as in ``flash``: 2^(score - running row maximum), and that maximum.

    ``seen`` is how many keys each query sees. Only a tile that is ``masked`` has others.
    """
    if masked:
        key = start + gl.arange(0, scores.shape[1], layout=gl.SliceLayout(0, SCORES))[None, :]
        scores = gl.where(key < seen[:, None], scores, float("-inf"))
    larger = gl.maximum(largest, gl.max(scores, 1) * score_scale)
    return gl.exp2(scores * score_scale - larger[:, None]), larger


@gluon.jit
def _sums(powers):
    """Sums of each row over the columns of a thread, of the four threads that share the row: shuffles wait until the end."""
    split = gl.reshape(powers, [powers.shape[0], powers.shape[1] // 8, 4, 2])
    return gl.sum(gl.sum(split, 3), 1)


@gluon.jit
def _packed(powers, dtype: gl.constexpr):
    """Pairs of neighbouring columns, rounded to 16 bits, in one integer.

    A loop keeps 16-bit values in a register each, and needs 64 instructions a step to pack them.
    """
    left, right = gl.split(gl.reshape(powers, [powers.shape[0], powers.shape[1] // 2, 2]))
    PACK: gl.constexpr = "cvt.rn.bf16x2.f32 $0, $2, $1;" if dtype == gl.bfloat16 else "cvt.rn.f16x2.f32 $0, $2, $1;"
    return gl.inline_asm_elementwise(PACK, "=r,f,f", [left, right], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def _unpacked(pairs, dtype: gl.constexpr, LAYOUT: gl.constexpr):
    """The left operand of a product, from ``_packed``."""
    left = (pairs & 0xFFFF).to(gl.int16).to(dtype, bitcast=True)
    right = (pairs >> 16).to(gl.int16).to(dtype, bitcast=True)
    return gl.convert_layout(gl.reshape(gl.join(left, right), [pairs.shape[0], 2 * pairs.shape[1]]), LAYOUT)


@gluon.jit
def _rescaled(total, shrink):
    return total * gl.convert_layout(shrink, gl.SliceLayout(1, total.type.layout))[:, None]


@gluon.jit
def _step(
    total, largest, weight, shrink, pairs, q, ks, vs, ready, free, step, start, seen, masked, score_scale,
    BLOCK: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr, SCORES: gl.constexpr, TOTAL: gl.constexpr,
):  # fmt: skip
    """Compute the softmax of keys from ``start`` on while ``pairs``, that of the previous tile, is multiplied by its values."""
    slot = step % STAGES
    before = (step - 1) % STAGES
    mbarrier.wait(ready.index(slot), (step // STAGES) & 1)
    scores = _score(q, ks, slot, BLOCK, COLUMNS, SCORES)
    p = _unpacked(pairs, ks.dtype, gl.DotOperandLayout(0, TOTAL, 2))
    # By the factor of the previous tile: the tensor cores have the scores to compute meanwhile.
    total = _rescaled(total, shrink)
    total = warpgroup_mma(p, vs.index(before).reshape([BLOCK, COLUMNS]), total, is_async=True)
    scores = warpgroup_mma_wait(1, deps=[scores])
    mbarrier.arrive(free.index(slot), count=1)
    powers, larger = _weigh(scores, largest, seen, start, masked, score_scale, SCORES)
    shrink = gl.exp2(largest - larger)
    weight = _rescaled(weight, shrink) + _sums(powers)
    # Wait for this tile's values here, not where they are used: ptxas moves no instruction across an mbarrier wait, and
    # would place the next wgmma wait before the softmax.
    mbarrier.wait(ready.index(STAGES + slot), (step // STAGES) & 1)
    total = warpgroup_mma_wait(0, deps=[total])
    mbarrier.arrive(free.index(STAGES + before), count=1)
    return total, larger, weight, shrink, _packed(powers, ks.dtype)


@gluon.jit
def _attend(
    PART: gl.constexpr, o_tiles, lse_ptr, qs, ks, vs, ready, free, q_ready, q_free, queries, keys, heads, places, together,
    score_scale,
    BLOCK: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr, WARPGROUPS: gl.constexpr,
):  # fmt: skip
    """Consumer warpgroup: attention of 64 queries of each tile to the tiles of keys that need masking, then to the ``whole`` others."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    TOTAL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    QUERIES: gl.constexpr = _ROWS * WARPGROUPS
    step = 0
    for wave in range(_waves(queries, places, QUERIES, CAUSAL)):
        batch, head, start, steps, whole = _tile(wave, queries, keys, heads, places, together, BLOCK, CAUSAL, QUERIES)
        start += PART * _ROWS
        query = start + gl.arange(0, _ROWS, layout=gl.SliceLayout(1, SCORES))
        seen = gl.minimum(query + 1, keys) if CAUSAL else query * 0 + keys
        place = wave % 2
        own = place * (qs.shape[0] // 2) + PART
        q = qs.index(own).reshape([_ROWS, COLUMNS])
        # The lowest finite fp32, not -inf: the first tile may hold no key that a query sees, and -inf - -inf is NaN.
        largest = gl.full([_ROWS], -3.4028234663852886e38, gl.float32, gl.SliceLayout(1, SCORES))
        mbarrier.wait(q_ready.index(place), (wave // 2) & 1)
        slot = step % STAGES
        mbarrier.wait(ready.index(slot), (step // STAGES) & 1)
        scores = warpgroup_mma_wait(0, deps=[_score(q, ks, slot, BLOCK, COLUMNS, SCORES)])
        mbarrier.arrive(free.index(slot), count=1)
        # By now the previous output has left the shared memory of its queries.
        tma.store_wait(0)
        mbarrier.arrive(q_free.index(1 - place), count=1, pred=wave > 0)
        powers, largest = _weigh(scores, largest, seen, (steps - 1) * BLOCK, True, score_scale, SCORES)
        weight = _sums(powers)
        pairs = _packed(powers, ks.dtype)
        shrink = gl.full([_ROWS], 1.0, gl.float32, gl.SliceLayout(1, SCORES))
        total = gl.zeros([_ROWS, COLUMNS], gl.float32, TOTAL)
        mbarrier.wait(ready.index(STAGES + slot), (step // STAGES) & 1)
        for now in range(step + 1, step + steps):
            total, largest, weight, shrink, pairs = _step(
                total, largest, weight, shrink, pairs, q, ks, vs, ready, free, now, (step + steps - 1 - now) * BLOCK, seen,
                now < step + steps - whole, score_scale, BLOCK, COLUMNS, STAGES, SCORES, TOTAL,
            )  # fmt: skip
        step += steps
        last = (step - 1) % STAGES
        p = _unpacked(pairs, ks.dtype, gl.DotOperandLayout(0, TOTAL, 2))
        total = warpgroup_mma(p, vs.index(last).reshape([BLOCK, COLUMNS]), _rescaled(total, shrink), is_async=True)
        weight = gl.convert_layout(gl.sum(weight, 1), gl.SliceLayout(1, SCORES))
        total = warpgroup_mma_wait(0, deps=[total])
        mbarrier.arrive(free.index(STAGES + last), count=1)
        if lse_ptr is not None:
            lse = lse_ptr + (batch * heads + head).to(gl.int64) * queries
            gl.store(lse + query, largest + gl.log2(weight), mask=query < queries)
        # Store through the queries' shared memory. TMA clips rows past the end.
        q.store(_rescaled(total, 1.0 / weight).to(q.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(o_tiles, [batch, head, start, 0], qs.index(own))
    tma.store_wait(0)


@gluon.jit
def attention_hopper_kernel(
    o_tiles, lse_ptr, q_tiles, k_tiles, v_tiles, places, heads, queries, keys, together, score_scale,
    GROUP: gl.constexpr, COLUMNS: gl.constexpr, CAUSAL: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
    WARPGROUPS: gl.constexpr = 2,
):  # fmt: skip
    """Compute tiles of 64 queries per warpgroup, of ``places`` (batch times heads) heads. GROUP query heads share a head of keys.

    Launch with 4 warps, and at most a program per tile; with more than 128 columns exactly that, as two tiles of queries do not fit.
    Descriptors are of 16-bit tensors (batch, heads, rows, COLUMNS), with BLOCK rows a tile for k and v, and 64 for q and o. ``lse_ptr`` and
    ``score_scale`` are as in ``attention_kernel``. The tiles of ``together`` heads lie side by side.
    """
    # A tile's queries, and the next one's: two places, of a power of two.
    HELD: gl.constexpr = (2 if WARPGROUPS == 2 else 4) * (2 if COLUMNS <= 128 else 1)
    qs = gl.allocate_shared_memory(q_tiles.dtype, [HELD, 1, 1, _ROWS, COLUMNS], q_tiles.layout)
    ks = gl.allocate_shared_memory(q_tiles.dtype, [STAGES, 1, 1, BLOCK, COLUMNS], k_tiles.layout)
    vs = gl.allocate_shared_memory(q_tiles.dtype, [STAGES, 1, 1, BLOCK, COLUMNS], v_tiles.layout)
    # ``ready``: each stage's keys and each stage's values have arrived. ``free``: all warpgroups have used them. The same for queries.
    ready = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 1], mbarrier.MBarrierLayout())
    q_ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    q_free = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2 * STAGES):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(free.index(i), count=WARPGROUPS)
    for i in gl.static_range(2):
        mbarrier.init(q_ready.index(i), count=1)
        mbarrier.init(q_free.index(i), count=WARPGROUPS)
    fence_async_shared()
    if WARPGROUPS == 2:
        gl.warp_specialize(
            [
                (_attend, (0, o_tiles, lse_ptr, qs, ks, vs, ready, free, q_ready, q_free, queries, keys, heads, places, together,
                           score_scale, BLOCK, COLUMNS, STAGES, CAUSAL, WARPGROUPS)),
                (_attend, (1, o_tiles, lse_ptr, qs, ks, vs, ready, free, q_ready, q_free, queries, keys, heads, places, together,
                           score_scale, BLOCK, COLUMNS, STAGES, CAUSAL, WARPGROUPS)),
                (_load, (q_tiles, k_tiles, v_tiles, qs, ks, vs, ready, free, q_ready, q_free, queries, keys, heads, places, together,
                         GROUP, CAUSAL, BLOCK, STAGES, WARPGROUPS)),
            ],
            [4, 1],
            [_OF_TWO, _LOADING],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_attend, (0, o_tiles, lse_ptr, qs, ks, vs, ready, free, q_ready, q_free, queries, keys, heads, places, together,
                           score_scale, BLOCK, COLUMNS, STAGES, CAUSAL, WARPGROUPS)),
                (_attend, (1, o_tiles, lse_ptr, qs, ks, vs, ready, free, q_ready, q_free, queries, keys, heads, places, together,
                           score_scale, BLOCK, COLUMNS, STAGES, CAUSAL, WARPGROUPS)),
                (_attend, (2, o_tiles, lse_ptr, qs, ks, vs, ready, free, q_ready, q_free, queries, keys, heads, places, together,
                           score_scale, BLOCK, COLUMNS, STAGES, CAUSAL, WARPGROUPS)),
                (_load, (q_tiles, k_tiles, v_tiles, qs, ks, vs, ready, free, q_ready, q_free, queries, keys, heads, places, together,
                         GROUP, CAUSAL, BLOCK, STAGES, WARPGROUPS)),
            ],
            [4, 4, 1],
            [_OF_THREE, _OF_THREE, _LOADING],
        )  # fmt: skip


def writer(
    o: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, score_scale: float, config: Mapping[str, int]
) -> Write:  # fmt: skip
    """What writes the output and, unless it is None, ``lse``, of tensors like these. TMA must be able to load them."""
    (batch, heads, queries, columns), (kv_heads, keys) = q.shape, k.shape[1:3]
    m, n, group = config["BLOCK_M"], config["BLOCK_N"], heads // kv_heads
    # One program an SM takes tiles in turn, which is faster than one program a tile.
    grid = cdiv(queries, m) * batch * heads
    programs = grid if columns > 128 else min(grid, multiprocessors(q))
    more, together = m == MORE_QUERIES.value, 1
    if causal:
        # A wave has four tiles of each head of keys, which share them in L2, and all waves are equally long. Three warpgroups make
        # waves of different lengths: there as many heads run together as L2 holds.
        heads_of_keys = _L2 // (4 * keys * columns) if more else multiprocessors(q) // 4
        together = max(1, heads_of_keys) * group
    o_tiles, q_tiles, k_tiles, v_tiles = tiles(o), tiles(q), tiles(k, n), tiles(v, n)
    numbers = batch * heads, heads, queries, keys, together, score_scale
    constants = {
        "GROUP": group, "COLUMNS": next_power_of_2(columns), "CAUSAL": causal, "BLOCK": n, "STAGES": config["num_stages"],
        "WARPGROUPS": 3 if more else 2, "num_warps": config["num_warps"],
    }  # fmt: skip

    def write(o: torch.Tensor, lse: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        loaded = q_tiles.of(q), k_tiles.of(k), v_tiles.of(v)
        launch(attention_hopper_kernel, (programs,), o_tiles.of(o), lse, *loaded, *numbers, **constants)

    return write
