"""Forward pass of attention on Hopper for few heads of up to 128 columns: two warpgroups share 64 queries, and take tiles of keys in turn.

Tiles of 64 queries are twice as many as the 128 of ``hopper``. With 64 columns two programs fit on an SM: four warpgroups compute softmax and
products in turns, so that none needs the registers to do both at once. At the end the first warpgroup adds the other one's part to its own.
"""

from __future__ import annotations

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

from tilescope_kernels._shared.launching import cdiv, launch, multiprocessors, next_power_of_2
from tilescope_kernels._shared.plans import Write
from tilescope_kernels.attention.hopper import _rescaled, _score, _sums, _weigh, lines, tiles

#: Queries of a program.
SHARED_QUERIES = gl.constexpr(64)
#: Registers per thread with 64 columns: of all warps at launch, so that two programs fit on an SM, then of the multiplying warps and of
#: the loading one. With 128 columns one program has an SM to itself.
_REGISTERS, _MULTIPLYING, _LOADING = 80, gl.constexpr(104), gl.constexpr(24)
_OF_128 = gl.constexpr(240)


@gluon.jit
def _tile(queries, keys, heads, places, together, processors, BLOCK: gl.constexpr, CAUSAL: gl.constexpr):
    """Batch, head and first query of this program, tiles of keys that its queries see, and how many of those need no mask.

    ``together`` of the ``places`` heads lie side by side. Under a causal mask their longest programs are the first of ``processors``, one
    for each SM, and the next as many run backwards: each SM gets a long and a short one.
    """
    blocks = (queries + SHARED_QUERIES - 1) // SHARED_QUERIES
    tile = gl.program_id(0)
    if CAUSAL:
        wave = tile // processors
        backwards = gl.minimum((wave + 1) * processors, gl.num_programs(0)) - 1 - (tile - wave * processors)
        tile = gl.where(wave % 2 == 1, backwards, tile)
    first = tile // (blocks * together) * together
    tile -= first * blocks
    together = gl.minimum(together, places - first)
    start = (blocks - 1 - tile // together) * SHARED_QUERIES
    place = first + tile % together
    end = keys
    whole = keys // BLOCK
    if CAUSAL:
        end = gl.minimum(keys, start + SHARED_QUERIES)
        whole = gl.minimum(keys, start + 1) // BLOCK
    return place // heads, place % heads, start, (end + BLOCK - 1) // BLOCK, whole


@gluon.jit
def _load(
    q_tiles, k_tiles, v_tiles, qs, ks, vs, ready, free, q_ready, batch, head, start, steps, GROUP: gl.constexpr, BLOCK: gl.constexpr
):  # fmt: skip
    """Producer warp: load the queries, then tiles of keys and values from last to first, for each warpgroup in turn."""
    mbarrier.expect(q_ready, q_tiles.block_type.nbytes)
    tma.async_copy_global_to_shared(q_tiles, [batch, head, start, 0], q_ready, qs)
    for step in range(steps):
        slot = step % 2
        # Every place starts free: on a fresh mbarrier a wait for the previous phase returns at once.
        phase = (step // 2) & 1 ^ 1
        place = (steps - 1 - step) * BLOCK
        mbarrier.wait(free.index(slot), phase)
        mbarrier.expect(ready.index(slot), k_tiles.block_type.nbytes)
        tma.async_copy_global_to_shared(k_tiles, [batch, head // GROUP, place, 0], ready.index(slot), ks.index(slot))
        mbarrier.wait(free.index(2 + slot), phase)
        mbarrier.expect(ready.index(2 + slot), v_tiles.block_type.nbytes)
        tma.async_copy_global_to_shared(
            v_tiles, [batch, head // GROUP, place, 0], ready.index(2 + slot), vs.index(slot)
        )


@gluon.jit
def _step(
    total, largest, weight, q, ks, vs, ready, free, turn, start, seen, masked, score_scale,
    PART: gl.constexpr, BLOCK: gl.constexpr, COLUMNS: gl.constexpr, SCORES: gl.constexpr, TOTAL: gl.constexpr,
):  # fmt: skip
    """Online softmax of the keys from ``start`` on, and the product with their values."""
    mbarrier.wait(ready.index(PART), turn & 1)
    scores = warpgroup_mma_wait(0, deps=[_score(q, ks, PART, BLOCK, COLUMNS, SCORES)])
    mbarrier.arrive(free.index(PART), count=1)
    powers, larger = _weigh(scores, largest, seen, start, masked, score_scale, SCORES)
    shrink = gl.exp2(largest - larger)
    weight = _rescaled(weight, shrink) + _sums(powers)
    total = _rescaled(total, shrink)
    p = gl.convert_layout(powers.to(ks.dtype), gl.DotOperandLayout(0, TOTAL, 2))
    mbarrier.wait(ready.index(2 + PART), turn & 1)
    product = warpgroup_mma(p, vs.index(PART).reshape([BLOCK, COLUMNS]), total, is_async=True)
    total = warpgroup_mma_wait(0, deps=[product])
    mbarrier.arrive(free.index(2 + PART), count=1)
    return total, larger, weight


@gluon.jit
def _attend(
    PART: gl.constexpr, o_tiles, lse_ptr, qs, ks, vs, ready, free, q_ready, passed, others, other_terms, batch, head, heads,
    start, steps, whole, queries, keys, score_scale, BLOCK: gl.constexpr, COLUMNS: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Consumer warpgroup: attention to every other tile of keys, first those that need masking, then the ``whole`` others."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    TOTAL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    OF_ROWS: gl.constexpr = gl.SliceLayout(1, SCORES)
    query = start + gl.arange(0, SHARED_QUERIES, layout=OF_ROWS)
    seen = gl.minimum(query + 1, keys) if CAUSAL else query * 0 + keys
    q = qs.reshape([SHARED_QUERIES, COLUMNS])
    # The lowest finite fp32, not -inf: a tile may hold no key that a query sees, and -inf - -inf is NaN.
    largest = gl.full([SHARED_QUERIES], -3.4028234663852886e38, gl.float32, OF_ROWS)
    weight = _sums(gl.zeros([SHARED_QUERIES, BLOCK], gl.float32, SCORES))
    total = gl.zeros([SHARED_QUERIES, COLUMNS], gl.float32, TOTAL)
    mbarrier.wait(q_ready, 0)
    for turn in range((steps - PART + 1) // 2):
        step = steps - 1 - PART - 2 * turn
        total, largest, weight = _step(
            total, largest, weight, q, ks, vs, ready, free, turn, step * BLOCK, seen, step >= whole, score_scale,
            PART, BLOCK, COLUMNS, SCORES, TOTAL,
        )  # fmt: skip
    weight = gl.convert_layout(gl.sum(weight, 1), OF_ROWS)
    if PART == 1:
        others.store(total)
        other_terms.index(0).store(largest)
        other_terms.index(1).store(weight)
        mbarrier.arrive(passed, count=1)
    else:
        mbarrier.wait(passed, 0)
        other_largest = other_terms.index(0).load(OF_ROWS)
        larger = gl.maximum(largest, other_largest)
        shrink = gl.exp2(largest - larger)
        other_shrink = gl.exp2(other_largest - larger)
        weight = weight * shrink + other_terms.index(1).load(OF_ROWS) * other_shrink
        if lse_ptr is not None:
            lse = lse_ptr + (batch * heads + head).to(gl.int64) * queries
            gl.store(lse + query, larger + gl.log2(weight), mask=query < queries)
        total = _rescaled(total, shrink / weight) + _rescaled(others.load(TOTAL), other_shrink / weight)
        # Store through the queries' shared memory, which both warpgroups have read. TMA clips rows past the end.
        q.store(total.to(q.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(o_tiles, [batch, head, start, 0], qs)
        tma.store_wait(0)


@gluon.jit(do_not_specialize=["places", "heads", "queries", "keys", "together", "processors"])
def attention_few_hopper_kernel(
    o_tiles, lse_ptr, q_tiles, k_tiles, v_tiles, places, heads, queries, keys, together, processors, score_scale,
    GROUP: gl.constexpr, COLUMNS: gl.constexpr, CAUSAL: gl.constexpr, BLOCK: gl.constexpr, LINES: gl.constexpr,
):  # fmt: skip
    """Compute 64 queries of one of ``places`` (batch times heads) heads per program. GROUP query heads share a head of keys.

    Launch with 4 warps and, with 64 columns, ``_REGISTERS`` as ``maxnreg``. Descriptors are of 16-bit tensors (batch, heads, rows, COLUMNS),
    with BLOCK rows a tile for k and v, and 64 for q and o. ``lse_ptr`` and ``score_scale`` are as in ``attention_kernel``.
    """
    batch, head, start, steps, whole = _tile(queries, keys, heads, places, together, processors, BLOCK, CAUSAL)
    qs = gl.allocate_shared_memory(q_tiles.dtype, [1, 1, SHARED_QUERIES, COLUMNS], q_tiles.layout)
    # Each warpgroup has a place for keys and one for values: while it computes the one, the other is loaded.
    ks = gl.allocate_shared_memory(q_tiles.dtype, [2, 1, 1, BLOCK, COLUMNS], k_tiles.layout)
    vs = gl.allocate_shared_memory(q_tiles.dtype, [2, 1, 1, BLOCK, COLUMNS], v_tiles.layout)
    others = gl.allocate_shared_memory(gl.float32, [SHARED_QUERIES, COLUMNS], LINES)
    other_terms = gl.allocate_shared_memory(gl.float32, [2, SHARED_QUERIES], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    # ``ready``: each warpgroup's keys, then each one's values have arrived. ``free``: it has used them.
    ready = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    q_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    passed = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(4):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(free.index(i), count=1)
    mbarrier.init(q_ready, count=1)
    mbarrier.init(passed, count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_attend, (0, o_tiles, lse_ptr, qs, ks, vs, ready, free, q_ready, passed, others, other_terms, batch, head, heads,
                       start, steps, whole, queries, keys, score_scale, BLOCK, COLUMNS, CAUSAL)),
            (_attend, (1, o_tiles, lse_ptr, qs, ks, vs, ready, free, q_ready, passed, others, other_terms, batch, head, heads,
                       start, steps, whole, queries, keys, score_scale, BLOCK, COLUMNS, CAUSAL)),
            (_load, (q_tiles, k_tiles, v_tiles, qs, ks, vs, ready, free, q_ready, batch, head, start, steps, GROUP, BLOCK)),
        ],
        [4, 1],
        [_MULTIPLYING if COLUMNS == 64 else _OF_128, _LOADING],
    )  # fmt: skip


def writer(
    o: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, score_scale: float, config: Mapping[str, int]
) -> Write:  # fmt: skip
    """What writes the output and, unless it is None, ``lse``, of tensors like these. TMA must be able to load them."""
    (batch, heads, queries, columns), (kv_heads, keys), block = q.shape, k.shape[1:3], config["BLOCK_N"]
    width = next_power_of_2(columns)
    programs, processors = cdiv(queries, SHARED_QUERIES.value), multiprocessors(q)
    o_tiles, q_tiles, k_tiles, v_tiles = tiles(o), tiles(q), tiles(k, block), tiles(v, block)
    grid, together = (programs * batch * heads,), cdiv(2 * processors, programs)
    numbers = batch * heads, heads, queries, keys, together, processors, score_scale
    constants = {
        "GROUP": heads // kv_heads, "COLUMNS": width, "CAUSAL": causal, "BLOCK": block, "LINES": lines(width),
        "num_warps": config["num_warps"], "maxnreg": _REGISTERS if width == 64 else None,
    }  # fmt: skip

    def write(o: torch.Tensor, lse: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        loaded = q_tiles.of(q), k_tiles.of(k), v_tiles.of(v)
        launch(attention_few_hopper_kernel, grid, o_tiles.of(o), lse, *loaded, *numbers, **constants)

    return write
