"""Warp-specialized forward pass of attention on Hopper: FlashAttention-3 (Shah et al., arXiv:2407.08608).

One warp loads through TMA. Two warpgroups multiply, or three for heads of 64 columns, with 64 queries each. A warpgroup
computes the softmax of one tile of keys while the tensor cores multiply the previous tile's values. Written in Gluon: with
Triton's own warp specialization this loop compiles but hangs on an H200 (triton 3.6).
"""

from __future__ import annotations

import functools

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

from tilescope_kernels.attention.flash import padded

#: Queries per warpgroup, the M of a wgmma instruction, and per program with two and with three warpgroups.
_ROWS = gl.constexpr(64)
QUERIES, MORE_QUERIES = gl.constexpr(128), gl.constexpr(192)
#: Registers per thread: of two multiplying warpgroups, of three, and of the loading warp. Together they fill the SM's register file.
_OF_TWO, _OF_THREE, _LOADING = gl.constexpr(240), gl.constexpr(160), gl.constexpr(24)


@functools.cache
def _shared(rows: int, columns: int, dtype: torch.dtype) -> tuple[list[int], gl.NVMMASharedLayout]:
    """Block shape and shared-memory layout of a descriptor, cached because computing them takes longer than many launches."""
    block = [1, 1, rows, padded(columns)]
    kind = gl.bfloat16 if dtype == torch.bfloat16 else gl.float16
    return block, gl.NVMMASharedLayout.get_default_for(block, kind)


def tiles(tensor: torch.Tensor, rows: int) -> TensorDescriptor:
    """TMA descriptor of a 16-bit tensor (batch, heads, rows, columns), with tiles (1, 1, rows, padded columns).

    Loads fill the padding with zeros, stores skip it.
    """
    block, layout = _shared(rows, tensor.shape[3], tensor.dtype)
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block, layout)


def query_tiles(tensor: torch.Tensor) -> TensorDescriptor:
    """TMA descriptor with tiles of one warpgroup's 64 rows."""
    return tiles(tensor, _ROWS.value)


@gluon.jit
def _load(
    q_tiles, k_tiles, v_tiles, qs, ks, vs, ready, free, batch, head, kv_head, start, blocks,
    BLOCK: gl.constexpr, STAGES: gl.constexpr, WARPGROUPS: gl.constexpr,
):  # fmt: skip
    """Producer warp: load the queries of all warpgroups, then tiles of keys and values from last to first."""
    mbarrier.expect(ready.index(0), WARPGROUPS * q_tiles.block_type.nbytes)
    for group in gl.static_range(WARPGROUPS):
        tma.async_copy_global_to_shared(
            q_tiles, [batch, head, start + group * _ROWS, 0], ready.index(0), qs.index(group)
        )
    for step in range(blocks):
        slot = step % STAGES
        # Every stage starts free: on a fresh mbarrier a wait for the previous phase returns at once.
        phase = (step // STAGES) & 1 ^ 1
        place = (blocks - 1 - step) * BLOCK
        arrived = ready.index(1 + slot)
        mbarrier.wait(free.index(slot), phase)
        mbarrier.expect(arrived, k_tiles.block_type.nbytes)
        tma.async_copy_global_to_shared(k_tiles, [batch, kv_head, place, 0], arrived, ks.index(slot))
        arrived = ready.index(1 + STAGES + slot)
        mbarrier.wait(free.index(STAGES + slot), phase)
        mbarrier.expect(arrived, v_tiles.block_type.nbytes)
        tma.async_copy_global_to_shared(v_tiles, [batch, kv_head, place, 0], arrived, vs.index(slot))


@gluon.jit
def _score(
    q, ks, ready, step, BLOCK: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr, SCORES: gl.constexpr
):  # fmt: skip
    """Wait for the keys of tile ``step`` and start their product with the queries, asynchronously."""
    slot = step % STAGES
    mbarrier.wait(ready.index(1 + slot), (step // STAGES) & 1)
    k = ks.index(slot).reshape([BLOCK, COLUMNS]).permute([1, 0])
    return warpgroup_mma(q, k, gl.zeros([_ROWS, BLOCK], gl.float32, SCORES), use_acc=False, is_async=True)


@gluon.jit
def _weigh(
    scores, largest, query, start, keys, score_scale, CAUSAL: gl.constexpr, MASKED: gl.constexpr, SCORES: gl.constexpr
):  # fmt: skip
    """Online softmax of a tile, as in ``flash``: 2^(score - running row maximum), and that maximum."""
    if MASKED:
        key = start + gl.arange(0, scores.shape[1], layout=gl.SliceLayout(0, SCORES))[None, :]
        visible = key < keys
        if CAUSAL:
            visible = visible & (key <= query[:, None])
        scores = gl.where(visible, scores, float("-inf"))
    larger = gl.maximum(largest, gl.max(scores, 1) * score_scale)
    return gl.exp2(scores * score_scale - larger[:, None]), larger


@gluon.jit
def _step(
    total, largest, weight, p, q, ks, vs, ready, free, step, blocks, query, keys, score_scale,
    BLOCK: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr, MASKED: gl.constexpr,
    SCORES: gl.constexpr, TOTAL: gl.constexpr,
):  # fmt: skip
    """Compute the softmax of tile ``step`` while ``p``, that of the previous tile, is multiplied by its values."""
    before = (step - 1) % STAGES
    scores = _score(q, ks, ready, step, BLOCK, COLUMNS, STAGES, SCORES)
    total = warpgroup_mma(p, vs.index(before).reshape([BLOCK, COLUMNS]), total, is_async=True)
    scores = warpgroup_mma_wait(1, deps=[scores])
    mbarrier.arrive(free.index(step % STAGES), count=1)
    start = (blocks - 1 - step) * BLOCK
    powers, larger = _weigh(scores, largest, query, start, keys, score_scale, CAUSAL, MASKED, SCORES)
    shrink = gl.exp2(largest - larger)
    weight = weight * shrink + gl.sum(powers, 1)
    # Wait for this tile's values here, not where they are used: ptxas moves no instruction across an mbarrier wait, and
    # would place the next wgmma wait before the softmax.
    mbarrier.wait(ready.index(1 + STAGES + step % STAGES), (step // STAGES) & 1)
    total = warpgroup_mma_wait(0, deps=[total])
    mbarrier.arrive(free.index(STAGES + before), count=1)
    total = total * gl.convert_layout(shrink, gl.SliceLayout(1, TOTAL))[:, None]
    p = gl.convert_layout(powers.to(q.dtype), gl.DotOperandLayout(0, TOTAL, 2))
    return total, larger, weight, p


@gluon.jit
def _attend(
    GROUP: gl.constexpr, o_tiles, lse_ptr, qs, ks, vs, ready, free, batch, head, heads, start, blocks, whole, queries,
    keys, score_scale, BLOCK: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Consumer warpgroup: attention of its 64 queries to the tiles of keys that need masking, then to the ``whole`` others."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    TOTAL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    start += GROUP * _ROWS
    query = start + gl.arange(0, _ROWS, layout=gl.SliceLayout(1, SCORES))
    q = qs.index(GROUP).reshape([_ROWS, COLUMNS])
    # The lowest finite fp32, not -inf: the first tile may hold no key that a query sees, and -inf - -inf is NaN.
    largest = gl.full([_ROWS], -3.4028234663852886e38, gl.float32, gl.SliceLayout(1, SCORES))
    mbarrier.wait(ready.index(0), 0)
    scores = warpgroup_mma_wait(0, deps=[_score(q, ks, ready, 0 * blocks, BLOCK, COLUMNS, STAGES, SCORES)])
    mbarrier.arrive(free.index(0), count=1)
    powers, largest = _weigh(scores, largest, query, (blocks - 1) * BLOCK, keys, score_scale, CAUSAL, True, SCORES)
    weight = gl.sum(powers, 1)
    mbarrier.wait(ready.index(1 + STAGES), 0)
    p = gl.convert_layout(powers.to(q.dtype), gl.DotOperandLayout(0, TOTAL, 2))
    total = gl.zeros([_ROWS, COLUMNS], gl.float32, TOTAL)
    for step in range(1, blocks - whole):
        total, largest, weight, p = _step(
            total, largest, weight, p, q, ks, vs, ready, free, step, blocks, query, keys, score_scale,
            BLOCK, COLUMNS, STAGES, CAUSAL, True, SCORES, TOTAL,
        )  # fmt: skip
    for step in range(gl.maximum(blocks - whole, 1), blocks):
        total, largest, weight, p = _step(
            total, largest, weight, p, q, ks, vs, ready, free, step, blocks, query, keys, score_scale,
            BLOCK, COLUMNS, STAGES, CAUSAL, False, SCORES, TOTAL,
        )  # fmt: skip
    last = blocks - 1
    v = vs.index(last % STAGES).reshape([BLOCK, COLUMNS])
    total = warpgroup_mma_wait(0, deps=[warpgroup_mma(p, v, total, is_async=True)])
    if lse_ptr is not None:
        lse_ptr += (batch * heads + head).to(gl.int64) * queries
        gl.store(lse_ptr + query, largest + gl.log2(weight), mask=query < queries)
    total = total / gl.convert_layout(weight, gl.SliceLayout(1, TOTAL))[:, None]
    # Store through the queries' shared memory. TMA clips rows past the end.
    q.store(total.to(q.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(o_tiles, [batch, head, start, 0], qs.index(GROUP))
    tma.store_wait(0)


@gluon.jit
def attention_hopper_kernel(
    o_tiles, lse_ptr, q_tiles, k_tiles, v_tiles, heads, queries, keys, score_scale,
    GROUP: gl.constexpr, COLUMNS: gl.constexpr, CAUSAL: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
    WARPGROUPS: gl.constexpr = 2,
):  # fmt: skip
    """Compute 64 queries of one head per warpgroup. GROUP query heads share a head of keys. Launch with 4 warps.

    Descriptors are of 16-bit tensors (batch, heads, rows, COLUMNS), with BLOCK rows a tile for k and v, and 64 for q and
    o. ``lse_ptr`` and ``score_scale`` are as in ``attention_kernel``.
    """
    QUERIES: gl.constexpr = _ROWS * WARPGROUPS
    blocks = (queries + QUERIES - 1) // QUERIES
    block = gl.program_id(0) % blocks
    if CAUSAL:  # Longest programs first; the shortest fill the last wave.
        block = blocks - 1 - block
    batch = gl.program_id(0) // blocks // heads
    head = gl.program_id(0) // blocks % heads
    start = block * QUERIES
    end = keys
    whole = keys // BLOCK
    if CAUSAL:
        end = gl.minimum(keys, start + QUERIES)
        whole = gl.minimum(keys, start + 1) // BLOCK
    blocks = (end + BLOCK - 1) // BLOCK
    qs = gl.allocate_shared_memory(q_tiles.dtype, [2 if WARPGROUPS == 2 else 4, 1, 1, _ROWS, COLUMNS], q_tiles.layout)
    ks = gl.allocate_shared_memory(q_tiles.dtype, [STAGES, 1, 1, BLOCK, COLUMNS], k_tiles.layout)
    vs = gl.allocate_shared_memory(q_tiles.dtype, [STAGES, 1, 1, BLOCK, COLUMNS], v_tiles.layout)
    # ``ready``: the queries, each stage's keys and each stage's values have arrived. ``free``: all warpgroups have used them.
    ready = gl.allocate_shared_memory(gl.int64, [1 + 2 * STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(1 + 2 * STAGES):
        mbarrier.init(ready.index(i), count=1)
    for i in gl.static_range(2 * STAGES):
        mbarrier.init(free.index(i), count=WARPGROUPS)
    fence_async_shared()
    if WARPGROUPS == 2:
        gl.warp_specialize(
            [
                (_attend, (0, o_tiles, lse_ptr, qs, ks, vs, ready, free, batch, head, heads, start, blocks, whole, queries,
                           keys, score_scale, BLOCK, COLUMNS, STAGES, CAUSAL)),
                (_attend, (1, o_tiles, lse_ptr, qs, ks, vs, ready, free, batch, head, heads, start, blocks, whole, queries,
                           keys, score_scale, BLOCK, COLUMNS, STAGES, CAUSAL)),
                (_load, (q_tiles, k_tiles, v_tiles, qs, ks, vs, ready, free, batch, head, head // GROUP, start, blocks,
                         BLOCK, STAGES, WARPGROUPS)),
            ],
            [4, 1],
            [_OF_TWO, _LOADING],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_attend, (0, o_tiles, lse_ptr, qs, ks, vs, ready, free, batch, head, heads, start, blocks, whole, queries,
                           keys, score_scale, BLOCK, COLUMNS, STAGES, CAUSAL)),
                (_attend, (1, o_tiles, lse_ptr, qs, ks, vs, ready, free, batch, head, heads, start, blocks, whole, queries,
                           keys, score_scale, BLOCK, COLUMNS, STAGES, CAUSAL)),
                (_attend, (2, o_tiles, lse_ptr, qs, ks, vs, ready, free, batch, head, heads, start, blocks, whole, queries,
                           keys, score_scale, BLOCK, COLUMNS, STAGES, CAUSAL)),
                (_load, (q_tiles, k_tiles, v_tiles, qs, ks, vs, ready, free, batch, head, head // GROUP, start, blocks,
                         BLOCK, STAGES, WARPGROUPS)),
            ],
            [4, 4, 1],
            [_OF_THREE, _OF_THREE, _LOADING],
        )  # fmt: skip
