"""Triton kernel of ``paged_attention``: that of ``decode``, for keys and values in pages."""

from __future__ import annotations

import triton
import triton.language as tl

from tilescope_kernels.attention.flash import padded


@triton.jit
def _pages(table_ptr, start, keys, PAGE: tl.constexpr, BLOCK: tl.constexpr):
    """Page numbers of keys ``start`` to ``start + BLOCK``, a scalar if one page holds them all. 0 from ``keys`` on."""
    if PAGE % BLOCK == 0:
        return tl.load(table_ptr + start // PAGE, mask=start < keys, other=0)
    else:
        key = start + tl.arange(0, BLOCK)
        return tl.load(table_ptr + key // PAGE, mask=key < keys, other=0)


@triton.jit
def _places(pages, strides, start, PAGE: tl.constexpr, BLOCK: tl.constexpr):
    """Offsets of keys ``start`` to ``start + BLOCK`` in a cache. ``strides`` are those of a page and of a key."""
    row = (start + tl.arange(0, BLOCK)) % PAGE
    return pages.to(tl.int64) * strides[0] + row.to(tl.int64) * strides[1]


@triton.jit
def _block(ptr, places, present, COLUMNS: tl.constexpr, MASKED: tl.constexpr):
    """Load keys or values at ``places``, zeros where not ``present`` and past the last column."""
    WIDTH: tl.constexpr = padded(COLUMNS)
    column = tl.arange(0, WIDTH)[None, :]
    pointers = ptr + places[:, None] + column
    if MASKED and WIDTH > COLUMNS:
        return tl.load(pointers, mask=present[:, None] & (column < COLUMNS), other=0.0)
    elif MASKED:
        return tl.load(pointers, mask=present[:, None], other=0.0)
    elif WIDTH > COLUMNS:
        return tl.load(pointers, mask=column < COLUMNS, other=0.0)
    else:
        return tl.load(pointers)


@triton.jit
def _attend(
    total, largest, weight, q, k_ptr, v_ptr, table_ptr, k_strides, v_strides, first, last, keys, seen, score_scale,
    PAGE: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Update the online softmax with keys ``first`` to ``last``, as in ``flash``. ``MASKED``: a row sees its first ``seen`` keys."""
    pages = _pages(table_ptr, first, keys, PAGE, BLOCK)
    for start in tl.range(first, last, BLOCK):
        key = start + tl.arange(0, BLOCK)
        k_places = _places(pages, k_strides, start, PAGE, BLOCK)
        v_places = _places(pages, v_strides, start, PAGE, BLOCK)
        # Load the next tile's pages now, so that its keys and values need not wait for them.
        pages = _pages(table_ptr, start + BLOCK, keys, PAGE, BLOCK)
        k = _block(k_ptr, k_places, key < keys, COLUMNS, MASKED)
        scores = tl.dot(q, k.T, input_precision="ieee") * score_scale
        if MASKED:
            scores = tl.where(key[None, :] < seen[:, None], scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        p = tl.exp2(scores - larger[:, None])
        shrink = tl.exp2(largest - larger)
        weight = weight * shrink + tl.sum(p, 1)
        v = _block(v_ptr, v_places, key < keys, COLUMNS, MASKED)
        total = tl.dot(p.to(v.dtype), v, total * shrink[:, None], input_precision="ieee")
        largest = larger
    return total, largest, weight


@triton.jit
def paged_attention_kernel(
    totals_ptr, sums_ptr, q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, q_strides, k_strides, v_strides, table_stride,
    kv_heads, queries, splits, score_scale,
    GROUP: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Attend BLOCK_M rows of a group's queries to one of ``splits`` spans of a sequence's keys per program.

    Spans are equal, in whole tiles. ``totals`` and ``sums`` are as in ``attention_decode_kernel``. Consecutive programs read
    the heads of one span, which are adjacent in memory.
    """
    rows = GROUP * queries
    kv_head = tl.program_id(0) % kv_heads
    split = tl.program_id(0) // kv_heads % splits
    block = tl.program_id(0) // kv_heads // splits % tl.cdiv(rows, BLOCK_M)
    batch = (tl.program_id(0) // kv_heads // splits // tl.cdiv(rows, BLOCK_M)).to(tl.int64)
    row = block * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.arange(0, padded(COLUMNS))[None, :]
    written = row[:, None] < rows
    if padded(COLUMNS) > COLUMNS:
        written = written & (column < COLUMNS)
    offsets = batch * q_strides[0] + (kv_head * GROUP + row // queries) * q_strides[1] + row % queries * q_strides[2]
    q = tl.load(q_ptr + offsets[:, None] + column, mask=written, other=0.0)
    keys = tl.load(lengths_ptr + batch)
    # Number of keys that all rows see, and that each row sees.
    common = keys
    seen = tl.zeros((BLOCK_M,), tl.int32) + keys
    if CAUSAL:
        common = tl.maximum(keys - queries + 1, 0)
        seen = keys - queries + 1 + row % queries
    span = tl.cdiv(tl.cdiv(keys, splits), BLOCK_N) * BLOCK_N
    first = split * span
    last = tl.minimum(first + span, keys)
    whole = first + tl.maximum(tl.minimum(last, common) - first, 0) // BLOCK_N * BLOCK_N
    # The lowest finite fp32, not -inf: all of a span's scores may be -inf, and -inf - -inf is NaN.
    largest = tl.full((BLOCK_M,), -3.4028234663852886e38, tl.float32)
    weight = tl.zeros((BLOCK_M,), tl.float32)
    total = tl.zeros((BLOCK_M, padded(COLUMNS)), tl.float32)
    table_ptr += batch * table_stride
    k_ptr += kv_head.to(tl.int64) * k_strides[2]
    v_ptr += kv_head.to(tl.int64) * v_strides[2]
    total, largest, weight = _attend(
        total, largest, weight, q, k_ptr, v_ptr, table_ptr, k_strides, v_strides, first, whole, keys, seen, score_scale,
        PAGE, BLOCK_N, COLUMNS, False,
    )  # fmt: skip
    total, largest, weight = _attend(
        total, largest, weight, q, k_ptr, v_ptr, table_ptr, k_strides, v_strides, whole, last, keys, seen, score_scale,
        PAGE, BLOCK_N, COLUMNS, True,
    )  # fmt: skip
    if split == 0:
        # The merged output of a row that sees no key is 0 / 1 = 0, not 0 / 0.
        weight = tl.where(seen > 0, weight, 1.0)
    place = ((batch * kv_heads + kv_head) * splits + split) * rows + row
    tl.store(totals_ptr + place[:, None] * COLUMNS + column, total, mask=written)
    tl.store(sums_ptr + 2 * place, largest, mask=row < rows)
    tl.store(sums_ptr + 2 * place + 1, weight, mask=row < rows)
