"""Warp-specialized forward pass of attention on Hopper: FlashAttention-3 (Shah et al., arXiv:2407.08608).

One warp loads and two warpgroups multiply, or three of heads of 64 columns. While a warpgroup's tensor cores multiply the
values of one block, its other units compute the softmax of the next block's scores, and the warpgroups take turns. The kernel
is in Gluon, because with Triton's own warp specialization this loop compiles and never ends on an H200 (triton 3.6).
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

#: Queries of a warpgroup, the rows of a tensor core instruction, and of a program of two of them and of three.
_ROWS = gl.constexpr(64)
QUERIES, MORE_QUERIES = gl.constexpr(128), gl.constexpr(192)
#: Registers of a thread that multiplies, one of two warpgroups and of three, and of one that loads: all that a multiprocessor has.
_OF_TWO, _OF_THREE, _LOADING = gl.constexpr(240), gl.constexpr(160), gl.constexpr(24)


@functools.cache
def _shared(rows: int, columns: int, dtype: torch.dtype) -> tuple[list[int], gl.NVMMASharedLayout]:
    """A tile's block and its layout in shared memory, which take longer to work out than many launches do."""
    block = [1, 1, rows, padded(columns)]
    kind = gl.bfloat16 if dtype == torch.bfloat16 else gl.float16
    return block, gl.NVMMASharedLayout.get_default_for(block, kind)


def tiles(tensor: torch.Tensor, rows: int) -> TensorDescriptor:
    """A descriptor of (1, 1, rows, padded columns) tiles of a tensor (batch, heads, rows, columns) in 16 bits.

    It reads zeros after the last column, and writes nothing there.
    """
    block, layout = _shared(rows, tensor.shape[3], tensor.dtype)
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block, layout)


def query_tiles(tensor: torch.Tensor) -> TensorDescriptor:
    """A descriptor of the queries of one warpgroup."""
    return tiles(tensor, _ROWS.value)


@gluon.jit
def _load(
    q_tiles, k_tiles, v_tiles, qs, ks, vs, ready, free, batch, head, kv_head, start, blocks,
    BLOCK: gl.constexpr, STAGES: gl.constexpr, WARPGROUPS: gl.constexpr,
):  # fmt: skip
    """Load the queries of all warpgroups, then keys and values from the last block to the first."""
    mbarrier.expect(ready.index(0), WARPGROUPS * q_tiles.block_type.nbytes)
    for group in gl.static_range(WARPGROUPS):
        tma.async_copy_global_to_shared(
            q_tiles, [batch, head, start + group * _ROWS, 0], ready.index(0), qs.index(group)
        )
    for step in range(blocks):
        slot = step % STAGES
        # A barrier's first wait for what has not been used yet must not wait: it asks for the phase before.
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
    """Wait for the keys of block ``step`` and start the product with them."""
    slot = step % STAGES
    mbarrier.wait(ready.index(1 + slot), (step // STAGES) & 1)
    k = ks.index(slot).reshape([BLOCK, COLUMNS]).permute([1, 0])
    return warpgroup_mma(q, k, gl.zeros([_ROWS, BLOCK], gl.float32, SCORES), use_acc=False, is_async=True)


@gluon.jit
def _weigh(
    scores, largest, query, start, keys, score_scale, CAUSAL: gl.constexpr, MASKED: gl.constexpr, SCORES: gl.constexpr
):  # fmt: skip
    """2^(score - largest score of the row so far), and that largest score, as in ``flash``."""
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
    """The softmax weights of block ``step``, computed while the weights ``p`` of the block before multiply its values."""
    before = (step - 1) % STAGES
    scores = _score(q, ks, ready, step, BLOCK, COLUMNS, STAGES, SCORES)
    total = warpgroup_mma(p, vs.index(before).reshape([BLOCK, COLUMNS]), total, is_async=True)
    scores = warpgroup_mma_wait(1, deps=[scores])
    mbarrier.arrive(free.index(step % STAGES), count=1)
    start = (blocks - 1 - step) * BLOCK
    powers, larger = _weigh(scores, largest, query, start, keys, score_scale, CAUSAL, MASKED, SCORES)
    shrink = gl.exp2(largest - larger)
    weight = weight * shrink + gl.sum(powers, 1)
    # Waited for here, not where they are needed: ptxas lets no instruction pass, and would put the next wait before the softmax.
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
    """The queries of one warpgroup: first the blocks of keys that need a mask, then the ``whole`` ones without."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    TOTAL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    start += GROUP * _ROWS
    query = start + gl.arange(0, _ROWS, layout=gl.SliceLayout(1, SCORES))
    q = qs.index(GROUP).reshape([_ROWS, COLUMNS])
    # The least finite number, not -inf: the first block may hold no key that a query sees, and -inf - -inf is NaN.
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
    # Out by way of the queries' shared memory; the descriptor leaves out rows that do not exist.
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
    """64 queries of one head a warpgroup, of which a program has 2 or 3; GROUP query heads share a head of keys. Launched with 4 warps.

    Descriptors are of tensors (batch, heads, rows, COLUMNS) in 16 bits, those of k and v of BLOCK rows. ``lse_ptr`` and
    ``score_scale`` are ``attention_kernel``'s.
    """
    QUERIES: gl.constexpr = _ROWS * WARPGROUPS
    blocks = (queries + QUERIES - 1) // QUERIES
    block = gl.program_id(0) % blocks
    if CAUSAL:  # The long programs first, the short ones fill the end.
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
    # One for the queries, then one for each block of keys and of values: both that it has come, and that all groups
    # have used it.
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
