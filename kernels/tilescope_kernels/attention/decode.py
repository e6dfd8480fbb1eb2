"""Split-KV attention for few queries over many keys, as in decoding: programs share the keys, a second launch merges.

Flash-Decoding (Dao, Haziza, Massa and Sizov, 2023). Decoding is bound by reading keys and values once, and only splitting
the keys gives every SM a part. A program reads a span of keys for all query heads that share them, in one tile. There are no
atomics, so the result is deterministic.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.launching import cdiv, launch, multiprocessors, next_power_of_2, shared_memory
from tilescope_kernels._shared.reach import is_far
from tilescope_kernels.attention.attention_configs import padded
from tilescope_kernels.attention.flash import _attend, spread

#: Most spans per head: one program reads the parts of all.
_SPLITS = 64
#: Fixed cost of a program, in keys: its start, and writing and reading its part.
_START = 256


@triton.jit(do_not_specialize=["keys", "splits"])
def attention_decode_kernel(
    totals_ptr, sums_ptr, q_ptr, k_ptr, v_ptr, q_strides, k_strides, v_strides,
    kv_heads, queries, keys, span, splits, score_scale,
    GROUP: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    FAR: tl.constexpr,
):  # fmt: skip
    """Attend BLOCK_M rows of a group's queries to ``span`` keys per program. ``span`` is a multiple of BLOCK_N.

    ``totals`` (batch * kv_heads, splits, rows, COLUMNS) in fp32 receives sums of 2^(score - largest) * value; ``sums``, with 2
    for COLUMNS, the largest score and the sum of 2^(score - largest).
    """
    k_strides, v_strides = spread(k_strides, FAR), spread(v_strides, FAR)
    rows = GROUP * queries
    split = tl.program_id(0) % splits
    block = tl.program_id(0) // splits % tl.cdiv(rows, BLOCK_M)
    head = tl.program_id(0) // splits // tl.cdiv(rows, BLOCK_M)
    batch = (head // kv_heads).to(tl.int64)
    kv_head = head % kv_heads
    row = block * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.arange(0, padded(COLUMNS))[None, :]
    written = row[:, None] < rows
    if padded(COLUMNS) > COLUMNS:
        written = written & (column < COLUMNS)
    q_head = (kv_head * GROUP + row // queries).to(tl.int64)
    q_row = (row % queries).to(tl.int64)
    offsets = batch * q_strides[0] + q_head * q_strides[1] + q_row * q_strides[2]
    q = tl.load(q_ptr + offsets[:, None] + column, mask=written, other=0.0)
    # The lowest finite fp32, not -inf: all of a span's scores may be -inf, and -inf - -inf is NaN.
    largest = tl.full((BLOCK_M,), -3.4028234663852886e38, tl.float32)
    weight = tl.zeros((BLOCK_M,), tl.float32)
    total = tl.zeros((BLOCK_M, padded(COLUMNS)), tl.float32)
    first = split * span
    last = tl.minimum(first + span, keys)
    whole = first + (last - first) // BLOCK_N * BLOCK_N
    total, largest, weight = _attend(
        total, largest, weight, q, k_ptr, v_ptr, None, None, k_strides, v_strides, batch, kv_head,
        0, first, whole, queries, keys, score_scale, None, None, None, BLOCK_M, BLOCK_N, COLUMNS, False, False,
    )  # fmt: skip
    total, largest, weight = _attend(
        total, largest, weight, q, k_ptr, v_ptr, None, None, k_strides, v_strides, batch, kv_head,
        0, whole, last, queries, keys, score_scale, None, None, None, BLOCK_M, BLOCK_N, COLUMNS, False, True,
    )  # fmt: skip
    place = (head * splits + split).to(tl.int64) * rows + row
    tl.store(totals_ptr + place[:, None] * COLUMNS + column, total, mask=written)
    tl.store(sums_ptr + 2 * place, largest, mask=row < rows)
    tl.store(sums_ptr + 2 * place + 1, weight, mask=row < rows)


@triton.jit
def attention_combine_kernel(
    o_ptr, totals_ptr, sums_ptr, o_strides, kv_heads, queries, splits,
    GROUP: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Merge the parts of one output row per program. ``SPLITS`` is a power of two, at least ``splits``."""
    rows = GROUP * queries
    row = tl.program_id(0) % rows
    head = tl.program_id(0) // rows
    column = tl.arange(0, padded(COLUMNS))
    split = tl.arange(0, SPLITS)
    valid = split < splits
    place = (head * splits + split).to(tl.int64) * rows + row
    largest = tl.load(sums_ptr + 2 * place, mask=valid, other=float("-inf"))
    weight = tl.load(sums_ptr + 2 * place + 1, mask=valid, other=0.0)
    read = valid[:, None]
    if padded(COLUMNS) > COLUMNS:
        read = read & (column < COLUMNS)[None, :]
    totals = tl.load(totals_ptr + place[:, None] * COLUMNS + column[None, :], mask=read, other=0.0)
    shrink = tl.exp2(largest - tl.max(largest, 0))
    o = tl.sum(totals * shrink[:, None], 0) / tl.sum(weight * shrink, 0)
    batch = (head // kv_heads).to(tl.int64)
    q_head = (head % kv_heads * GROUP + row // queries).to(tl.int64)
    o_ptr += batch * o_strides[0] + q_head * o_strides[1] + (row % queries).to(tl.int64) * o_strides[2]
    tl.store(o_ptr + column, o.to(o_ptr.dtype.element_ty), mask=column < COLUMNS)


def _tiles(q: torch.Tensor) -> Mapping[str, int]:
    """Keys per tile, warps and stages."""
    if q.dtype == torch.float32:  # on the CUDA cores
        return {"BLOCK_N": 32, "num_warps": 4, "num_stages": 2}
    return {"BLOCK_N": 64, "num_warps": 4, "num_stages": 3 if shared_memory(q) >= 163 * 1024 else 2}


@functools.cache
def _span(units: int, keys: int, block: int, slots: int) -> int:
    """Keys per program, in whole tiles of ``block``: the split of ``units`` that ends first if ``slots`` programs run at once."""

    def time(splits: int) -> tuple[float, int]:
        span = cdiv(cdiv(keys, splits), block) * block
        waves = units * cdiv(keys, span) / slots
        # After the first wave programs start one by one, and the last may do so when all others have ended.
        return (1 if waves <= 1 else waves + 1) * (span + _START), splits

    best = min(range(1, min(_SPLITS, cdiv(keys, block)) + 1), key=time)
    return cdiv(cdiv(keys, best), block) * block


def decode(o: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, score_scale: float) -> None:
    """Write the output to ``o`` (batch, heads, queries, columns). ``score_scale`` is scale * log2(e)."""
    (batch, heads, queries, columns), (kv_heads, keys) = q.shape, k.shape[1:3]
    group, tiles = heads // kv_heads, _tiles(q)
    rows = group * queries
    block = min(64, max(16, next_power_of_2(rows)))
    units = batch * kv_heads * cdiv(rows, block)
    # Two programs fit on an SM.
    span = _span(units, keys, tiles["BLOCK_N"], 2 * multiprocessors(q))
    splits = cdiv(keys, span)
    totals = torch.empty((batch * kv_heads, splits, rows, columns), dtype=torch.float32, device=q.device)
    sums = torch.empty((batch * kv_heads, splits, rows, 2), dtype=torch.float32, device=q.device)
    launch(
        attention_decode_kernel, (units * splits,),
        totals, sums, q, k, v, *(t.stride()[:3] for t in (q, k, v)), kv_heads, queries, keys, span, splits, score_scale,
        GROUP=group, COLUMNS=columns, BLOCK_M=block,
        FAR=is_far(k.stride(2), v.stride(2)), **tiles,
    )  # fmt: skip
    launch(
        attention_combine_kernel, (batch * heads * queries,),
        o, totals, sums, o.stride()[:3], kv_heads, queries, splits,
        GROUP=group, COLUMNS=columns, SPLITS=next_power_of_2(splits), num_warps=4,
    )  # fmt: skip
