"""Triton kernels of ``ragged_attention``: those of ``flash``, for sequences that are packed in one tensor.

Tensors are (rows, heads, COLUMNS). The functions of ``flash`` see one batch (1, heads, rows, COLUMNS); ``*_strides`` are
its strides of batch, head and row. ``q_bounds`` and ``k_bounds`` (sequences + 1,) hold each sequence's first row and the
end of the last one. Row numbers count from the start of the tensor. The causal mask is aligned to a sequence's end: a query's
place among the keys is its row plus the difference of both ends.

The grid is that of ``sequences + 1`` sequences of ``longest`` rows. A program past the end of its sequence returns at once.
Programs of the extra sequence write zeros to the rows after the last one.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tilescope_kernels.attention.flash import (
    _attend,
    _attended,
    _attending,
    _key_bounds,
    _place,
    _rows,
    _store_rows,
    padded,
    spread,
)


@triton.jit
def _store_zeros(ptr, strides, head, start, step, extent, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Write zeros to ROWS rows of a head from each of ``start``, ``start + step``, ... on, up to row ``extent``."""
    for row in range(start, extent, step):
        _store_rows(ptr, strides, 0, head, row, extent, tl.zeros((ROWS, padded(COLUMNS)), tl.float32), ROWS, COLUMNS)


@triton.jit
def _seen_keys(place, keys, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr):
    """Numbers of keys that all of BLOCK_M queries see, in whole tiles, and that any sees. The first is at ``place`` among the keys."""
    _, _, whole, end = _key_bounds(place, place + BLOCK_M, keys, None, BLOCK_N, CAUSAL)
    return tl.maximum(whole, 0), tl.maximum(end, 0)


@triton.jit(do_not_specialize=["rows", "sequences", "longest"])
def ragged_attention_kernel(
    o_ptr, lse_ptr, q_ptr, k_ptr, v_ptr, q_bounds, k_bounds, o_strides, q_strides, k_strides, v_strides,
    heads, rows, sequences, longest, score_scale,
    GROUP: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    FAR: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK_M queries of one head of one sequence per program. GROUP query heads share a head of keys.

    ``lse_ptr`` (heads, rows) receives log2(sum of 2^score) of each row, infinity where it sees no key, or is None.
    """
    o_strides, q_strides = spread(o_strides, FAR), spread(q_strides, FAR)
    k_strides, v_strides = spread(k_strides, FAR), spread(v_strides, FAR)
    sequence, head, start = _place(longest, heads, BLOCK_M, CAUSAL)
    first = tl.load(q_bounds + sequence)
    if sequence == sequences:
        _store_zeros(o_ptr, o_strides, head, first + start, tl.cdiv(longest, BLOCK_M) * BLOCK_M, rows, BLOCK_M, COLUMNS)
        return
    last = tl.load(q_bounds + sequence + 1)
    start += first
    if start >= last:
        return
    first_k = tl.load(k_bounds + sequence)
    last_k = tl.load(k_bounds + sequence + 1)
    q = _rows(q_ptr, None, q_strides, 0, head, start, last, BLOCK_M, COLUMNS, True)
    # The lowest finite fp32, not -inf: a row's first tiles may be all -inf, and -inf - -inf is NaN.
    largest = tl.full((BLOCK_M,), -3.4028234663852886e38, tl.float32)
    weight = tl.zeros((BLOCK_M,), tl.float32)
    total = tl.zeros((BLOCK_M, padded(COLUMNS)), tl.float32)
    place = start + last_k - last
    whole, end = _seen_keys(place - first_k, last_k - first_k, BLOCK_M, BLOCK_N, CAUSAL)
    total, largest, weight = _attend(
        total, largest, weight, q, k_ptr, v_ptr, None, None, k_strides, v_strides, 0, head // GROUP,
        place, first_k, first_k + whole, 0, last_k, score_scale, None, None, None, BLOCK_M, BLOCK_N, COLUMNS, CAUSAL, False,
    )  # fmt: skip
    total, largest, weight = _attend(
        total, largest, weight, q, k_ptr, v_ptr, None, None, k_strides, v_strides, 0, head // GROUP,
        place, first_k + whole, first_k + end, 0, last_k, score_scale, None, None, None, BLOCK_M, BLOCK_N, COLUMNS, CAUSAL, True,
    )  # fmt: skip
    # A query that sees no key: its output is 0, and lse = inf makes its p 0 in the backward pass.
    blind = place + tl.arange(0, BLOCK_M) < first_k if CAUSAL else first_k == last_k
    lse = tl.where(blind, float("inf"), largest + tl.log2(weight))
    weight = tl.where(blind, 1.0, weight)
    _store_rows(o_ptr, o_strides, 0, head, start, last, total / weight[:, None], BLOCK_M, COLUMNS)
    if lse_ptr is not None:
        query = start + tl.arange(0, BLOCK_M)
        tl.store(lse_ptr + head.to(tl.int64) * rows + query, lse, mask=query < last)


@triton.jit(do_not_specialize=["rows", "key_rows", "sequences", "longest"])
def ragged_backward_kv_kernel(
    dk_ptr, dv_ptr, do_ptr, q_ptr, k_ptr, v_ptr, lse_ptr, delta_ptr, q_bounds, k_bounds, dk_strides, dv_strides,
    do_strides, q_strides, k_strides, v_strides, kv_heads, rows, key_rows, sequences, longest, scale, score_scale,
    GROUP: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    FAR: tl.constexpr,
):  # fmt: skip
    """Compute dK and dV of BLOCK_N keys of one head of one sequence per program, over the GROUP query heads that share it."""
    dk_strides, dv_strides, do_strides = spread(dk_strides, FAR), spread(dv_strides, FAR), spread(do_strides, FAR)
    q_strides, k_strides, v_strides = spread(q_strides, FAR), spread(k_strides, FAR), spread(v_strides, FAR)
    # Under a causal mask the first keys are seen by the most queries: the longest programs start first already.
    sequence, kv_head, start = _place(longest, kv_heads, BLOCK_N, False)
    first = tl.load(k_bounds + sequence)
    if sequence == sequences:
        step = tl.cdiv(longest, BLOCK_N) * BLOCK_N
        _store_zeros(dk_ptr, dk_strides, kv_head, first + start, step, key_rows, BLOCK_N, COLUMNS)
        _store_zeros(dv_ptr, dv_strides, kv_head, first + start, step, key_rows, BLOCK_N, COLUMNS)
        return
    last = tl.load(k_bounds + sequence + 1)
    start += first
    if start >= last:
        return
    first_q = tl.load(q_bounds + sequence)
    last_q = tl.load(q_bounds + sequence + 1)
    k = _rows(k_ptr, None, k_strides, 0, kv_head, start, last, BLOCK_N, COLUMNS, True)
    v = _rows(v_ptr, None, v_strides, 0, kv_head, start, last, BLOCK_N, COLUMNS, True)
    dk = tl.zeros((BLOCK_N, padded(COLUMNS)), tl.float32)
    dv = tl.zeros((BLOCK_N, padded(COLUMNS)), tl.float32)
    # Queries from ``seen`` on see some of these keys, from ``whole`` on all of them.
    place = start + last_q - last
    seen, whole = first_q, first_q
    if CAUSAL:
        seen += tl.maximum(place - first_q, 0) // BLOCK_M * BLOCK_M
        whole += tl.cdiv(tl.maximum(place + BLOCK_N - 1 - first_q, 0), BLOCK_M) * BLOCK_M
        whole = tl.minimum(whole, last_q)
    for member in range(GROUP):
        head = kv_head * GROUP + member
        row = head.to(tl.int64) * rows
        if CAUSAL and GROUP > 1:
            # One masked loop: a masked and an unmasked one inside this loop need too many registers.
            dk, dv = _attended(
                dk, dv, k, v, q_ptr, do_ptr, lse_ptr + row, delta_ptr + row, None, None, q_strides, do_strides,
                0, head, place, seen, last_q, last_q, 0, score_scale, None, None, None,
                BLOCK_M, BLOCK_N, COLUMNS, True, False,
            )  # fmt: skip
        else:
            if CAUSAL:
                dk, dv = _attended(
                    dk, dv, k, v, q_ptr, do_ptr, lse_ptr + row, delta_ptr + row, None, None, q_strides, do_strides,
                    0, head, place, seen, whole, last_q, 0, score_scale, None, None, None,
                    BLOCK_M, BLOCK_N, COLUMNS, True, False,
                )  # fmt: skip
            dk, dv = _attended(
                dk, dv, k, v, q_ptr, do_ptr, lse_ptr + row, delta_ptr + row, None, None, q_strides, do_strides,
                0, head, place, whole, last_q, last_q, 0, score_scale, None, None, None,
                BLOCK_M, BLOCK_N, COLUMNS, False, False,
            )  # fmt: skip
    _store_rows(dk_ptr, dk_strides, 0, kv_head, start, last, dk * scale, BLOCK_N, COLUMNS)
    _store_rows(dv_ptr, dv_strides, 0, kv_head, start, last, dv, BLOCK_N, COLUMNS)


@triton.jit(do_not_specialize=["rows", "sequences", "longest"])
def ragged_backward_q_kernel(
    dq_ptr, do_ptr, q_ptr, k_ptr, v_ptr, lse_ptr, delta_ptr, q_bounds, k_bounds, dq_strides, do_strides,
    q_strides, k_strides, v_strides, heads, rows, sequences, longest, scale, score_scale,
    GROUP: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    FAR: tl.constexpr,
):  # fmt: skip
    """Compute dQ of BLOCK_M queries of one head of one sequence per program."""
    dq_strides, do_strides, q_strides = spread(dq_strides, FAR), spread(do_strides, FAR), spread(q_strides, FAR)
    k_strides, v_strides = spread(k_strides, FAR), spread(v_strides, FAR)
    sequence, head, start = _place(longest, heads, BLOCK_M, CAUSAL)
    first = tl.load(q_bounds + sequence)
    if sequence == sequences:
        _store_zeros(
            dq_ptr, dq_strides, head, first + start, tl.cdiv(longest, BLOCK_M) * BLOCK_M, rows, BLOCK_M, COLUMNS
        )
        return
    last = tl.load(q_bounds + sequence + 1)
    start += first
    if start >= last:
        return
    first_k = tl.load(k_bounds + sequence)
    last_k = tl.load(k_bounds + sequence + 1)
    q = _rows(q_ptr, None, q_strides, 0, head, start, last, BLOCK_M, COLUMNS, True)
    do = _rows(do_ptr, None, do_strides, 0, head, start, last, BLOCK_M, COLUMNS, True)
    query = start + tl.arange(0, BLOCK_M)
    row = head.to(tl.int64) * rows
    lse = tl.load(lse_ptr + row + query, mask=query < last, other=float("inf"))
    delta = tl.load(delta_ptr + row + query, mask=query < last, other=0.0)
    dq = tl.zeros((BLOCK_M, padded(COLUMNS)), tl.float32)
    place = start + last_k - last
    whole, end = _seen_keys(place - first_k, last_k - first_k, BLOCK_M, BLOCK_N, CAUSAL)
    dq = _attending(
        dq, q, do, lse, delta, k_ptr, v_ptr, None, None, k_strides, v_strides, 0, head // GROUP, place,
        first_k, first_k + whole, 0, last_k, score_scale, None, None, None, BLOCK_M, BLOCK_N, COLUMNS, CAUSAL, False,
    )  # fmt: skip
    dq = _attending(
        dq, q, do, lse, delta, k_ptr, v_ptr, None, None, k_strides, v_strides, 0, head // GROUP, place,
        first_k + whole, first_k + end, 0, last_k, score_scale, None, None, None, BLOCK_M, BLOCK_N, COLUMNS, CAUSAL, True,
    )  # fmt: skip
    _store_rows(dq_ptr, dq_strides, 0, head, start, last, dq * scale, BLOCK_M, COLUMNS)
