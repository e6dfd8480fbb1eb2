"""Triton kernels of ``attention``: one forward launch, and a backward pass of three launches without atomics.

Tensors are (batch, heads, rows, COLUMNS). ``*_tiles`` are their TMA descriptors, or None to load through pointers. ``*_strides`` are the
strides of batch, head and row in elements; a row is contiguous. Scores are scaled to base 2, because the hardware computes exp2:
``score_scale`` is scale * log2(e). Tiles are padded with zeros to ``padded(COLUMNS)`` columns, a width that ``tl.dot`` takes; only COLUMNS
of them are loaded and stored. ``FAR``: rows lie so far apart that offsets within a tile need int64.

``mask_ptr`` is None or a tensor (batch, heads, queries, keys) of booleans or of numbers that are added to the scores;
``mask`` is its part of one head. ``window`` is None or the number of keys that a query sees under a causal mask.

Libraries hide keys with the lowest finite number. Times log2(e) that is -inf, so that beside a mask of numbers scores are not in base 2: their
differences are scaled instead. A row of nothing else is the mean of its values. The logarithm of their number is lost in a sum with the
row's largest score, so that ``lse`` has two parts (batch, heads, 2, queries): the largest score, infinity where the row sees no key, and
log2(sum of 2^difference to it).
"""

from __future__ import annotations

import triton
import triton.language as tl

from tilescope_kernels.attention.attention_configs import padded

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.constexpr_function
def adds(mask):
    """``is_added`` of a pointer or None, in kernels."""
    return mask is not None and mask.dtype.element_ty != tl.int1


@triton.jit
def power(difference, mask):
    """The exponential of a difference of scores."""
    if adds(mask):
        return tl.exp2(difference * _LOG2_E)
    else:
        return tl.exp2(difference)


@triton.jit
def softmax(scores, lse, log, mask):
    """The exponential of scores over their row's sum: of its two parts beside a mask of numbers."""
    if adds(mask):
        return tl.exp2((scores - lse) * _LOG2_E - log)
    else:
        return tl.exp2(scores - lse)


@triton.jit
def masked(scores, mask, strides, query, key, queries, keys):
    """Apply one head's mask to scores: -inf where a boolean is false, a number is added."""
    offsets = tl.cast(query, tl.int64) * strides[2] + tl.cast(key, tl.int64) * strides[3]
    inside = (query < queries) & (key < keys)
    if mask.dtype.element_ty == tl.int1:
        return tl.where(tl.load(mask + offsets, mask=inside, other=0), scores, float("-inf"))
    else:
        return scores + tl.load(mask + offsets, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _origin(strides, batch, head, start):
    """Offset of a tile in elements, as int64. Offsets within a tile are int32, unless ``spread`` made its rows' stride int64."""
    return (
        tl.cast(batch, tl.int64) * strides[0]
        + tl.cast(head, tl.int64) * strides[1]
        + tl.cast(start, tl.int64) * strides[2]
    )


@triton.jit
def spread(strides, FAR: tl.constexpr):
    """Strides, that of rows as int64 if ``FAR``, so that offsets within a tile are int64, too."""
    if FAR:
        return strides[0], strides[1], tl.cast(strides[2], tl.int64)
    else:
        return strides


@triton.jit
def _place(extent, heads, BLOCK: tl.constexpr, BACKWARDS: tl.constexpr):
    """This program's batch, head and first row. Consecutive programs share a head, so its other tensors hit L2.

    ``BACKWARDS``: a head's last rows come first. Under a causal mask they see the most keys, so the longest programs
    start first and the shortest fill the last wave.
    """
    blocks = tl.cdiv(extent, BLOCK)
    block = tl.program_id(0) % blocks
    if BACKWARDS:
        block = blocks - 1 - block
    head = tl.program_id(0) // blocks
    return head // heads, head % heads, block * BLOCK


@triton.jit
def _rows(
    ptr, tiles, strides, batch, head, start, extent,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Load rows ``start`` to ``start + ROWS`` of one head, zeros from ``extent`` on. Pointers check that only if ``MASKED``."""
    WIDTH: tl.constexpr = padded(COLUMNS)
    if tiles is not None:
        return tiles.load([batch, head, start, 0]).reshape(ROWS, WIDTH)
    else:
        column = tl.arange(0, WIDTH)[None, :]
        origin = _origin(strides, batch, head, start)
        offsets = tl.arange(0, ROWS)[:, None] * strides[2] + column
        inside = start + tl.arange(0, ROWS)[:, None] < extent
        if MASKED and WIDTH > COLUMNS:
            return tl.load(ptr + origin + offsets, mask=inside & (column < COLUMNS), other=0.0)
        elif MASKED:
            return tl.load(ptr + origin + offsets, mask=inside, other=0.0)
        elif WIDTH > COLUMNS:
            return tl.load(ptr + origin + offsets, mask=column < COLUMNS, other=0.0)
        else:
            return tl.load(ptr + origin + offsets)


@triton.jit
def _store_rows(ptr, strides, batch, head, start, extent, values, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    WIDTH: tl.constexpr = padded(COLUMNS)
    column = tl.arange(0, WIDTH)[None, :]
    origin = _origin(strides, batch, head, start)
    offsets = tl.arange(0, ROWS)[:, None] * strides[2] + column
    mask = start + tl.arange(0, ROWS)[:, None] < extent
    if WIDTH > COLUMNS:
        mask = mask & (column < COLUMNS)
    tl.store(ptr + origin + offsets, values.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def _visible(query, key, keys, window, CAUSAL: tl.constexpr):
    """Whether a query sees a key: the key exists and, if ``CAUSAL``, lies neither after the query nor before its window."""
    visible = key < keys
    if CAUSAL:
        visible = visible & (key <= query)
    if window is not None:
        visible = visible & (key > query - window)
    return visible


@triton.jit
def _key_bounds(start, queries_end, keys, window, BLOCK: tl.constexpr, CAUSAL: tl.constexpr):
    """Four bounds of three ranges of keys, for the queries from ``start`` to ``queries_end``.

    The first range crosses the start of the ``window`` and is empty without one. All queries see all keys of the second.
    The third crosses the causal diagonal or the end of the keys.
    """
    if CAUSAL:
        end = tl.minimum(keys, queries_end)
        whole = tl.minimum(start + 1, keys) // BLOCK * BLOCK
    else:
        end = keys
        whole = keys // BLOCK * BLOCK
    if window is not None:
        first = tl.minimum(tl.maximum(start + 1 - window, 0) // BLOCK * BLOCK, whole)
        begin = tl.minimum(tl.cdiv(tl.maximum(queries_end - window, 0), BLOCK) * BLOCK, whole)
        return first, begin, whole, end
    else:
        return 0, 0, whole, end


@triton.jit
def _attend(
    total, largest, weight, q, k_ptr, v_ptr, k_tiles, v_tiles, k_strides, v_strides, batch, head, start_q,
    first, last, queries, keys, score_scale, mask, mask_strides, window,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, COLUMNS: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Update the online softmax with keys ``first`` to ``last``. ``MASKED``: some query does not see some key."""
    for start in tl.range(first, last, BLOCK_N):
        k = _rows(k_ptr, k_tiles, k_strides, batch, head, start, keys, BLOCK_N, COLUMNS, MASKED)
        scores = tl.dot(q, k.T, input_precision="ieee")
        if MASKED or mask is not None:
            query = start_q + tl.arange(0, BLOCK_M)[:, None]
            key = start + tl.arange(0, BLOCK_N)[None, :]
            scores = scores * score_scale
            if mask is not None:
                scores = masked(scores, mask, mask_strides, query, key, queries, keys)
            if MASKED:
                scores = tl.where(_visible(query, key, keys, window, CAUSAL), scores, float("-inf"))
            larger = tl.maximum(largest, tl.max(scores, 1))
            p = power(scores - larger[:, None], mask)
        else:
            # Scale the row maximum, so that scaling and subtracting a score is one fused multiply-add.
            larger = tl.maximum(largest, tl.max(scores, 1) * score_scale)
            p = tl.exp2(scores * score_scale - larger[:, None])
        shrink = power(largest - larger, mask)
        weight = weight * shrink + tl.sum(p, 1)
        total = total * shrink[:, None]
        v = _rows(v_ptr, v_tiles, v_strides, batch, head, start, keys, BLOCK_N, COLUMNS, MASKED)
        total = tl.dot(p.to(v.dtype), v, total, input_precision="ieee")
        largest = larger
    return total, largest, weight


@triton.jit
def attention_kernel(
    o_ptr, lse_ptr, q_ptr, k_ptr, v_ptr, q_tiles, k_tiles, v_tiles, o_strides, q_strides, k_strides, v_strides,
    heads, queries, keys, score_scale, mask_ptr, mask_strides, window,
    GROUP: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK_M queries of one head per program. GROUP query heads share a head of keys.

    ``EVEN``: ``keys`` is a multiple of BLOCK_N. ``lse_ptr`` (batch, heads, queries) receives log2(sum of 2^score) of each row, beside a
    mask of numbers its two parts, or is None. ``warp_specialize=True`` on the loop over keys compiles but hangs on an H200 (triton 3.6).
    """
    o_strides, q_strides = spread(o_strides, FAR), spread(q_strides, FAR)
    k_strides, v_strides = spread(k_strides, FAR), spread(v_strides, FAR)
    batch, head, start = _place(queries, heads, BLOCK_M, CAUSAL)
    q = _rows(q_ptr, q_tiles, q_strides, batch, head, start, queries, BLOCK_M, COLUMNS, True)
    # The lowest finite fp32, not -inf: a row's first tiles may be all -inf, and -inf - -inf is NaN.
    largest = tl.full((BLOCK_M,), -3.4028234663852886e38, tl.float32)
    weight = tl.zeros((BLOCK_M,), tl.float32)
    total = tl.zeros((BLOCK_M, padded(COLUMNS)), tl.float32)
    mask = mask_ptr
    if mask_ptr is not None:
        mask += _origin(mask_strides, batch, head, 0)
    first, begin, whole, end = _key_bounds(start, start + BLOCK_M, keys, window, BLOCK_N, CAUSAL)
    if window is not None:
        total, largest, weight = _attend(
            total, largest, weight, q, k_ptr, v_ptr, k_tiles, v_tiles, k_strides, v_strides, batch, head // GROUP,
            start, first, begin, queries, keys, score_scale, mask, mask_strides, window, BLOCK_M, BLOCK_N, COLUMNS, CAUSAL, True,
        )  # fmt: skip
    total, largest, weight = _attend(
        total, largest, weight, q, k_ptr, v_ptr, k_tiles, v_tiles, k_strides, v_strides, batch, head // GROUP,
        start, begin, whole, queries, keys, score_scale, mask, mask_strides, window, BLOCK_M, BLOCK_N, COLUMNS, CAUSAL, False,
    )  # fmt: skip
    if CAUSAL or not EVEN:
        total, largest, weight = _attend(
            total, largest, weight, q, k_ptr, v_ptr, k_tiles, v_tiles, k_strides, v_strides, batch, head // GROUP,
            start, whole, end, queries, keys, score_scale, mask, mask_strides, window, BLOCK_M, BLOCK_N, COLUMNS, CAUSAL, True,
        )  # fmt: skip
    lse = largest if adds(mask_ptr) else largest + tl.log2(weight)
    if mask_ptr is not None or window is not None:
        # A query that sees no key: its output is 0, and lse = inf makes its p 0 in the backward pass.
        lse = tl.where(weight == 0.0, float("inf"), lse)
        weight = tl.where(weight == 0.0, 1.0, weight)
    _store_rows(o_ptr, o_strides, batch, head, start, queries, total / weight[:, None], BLOCK_M, COLUMNS)
    if lse_ptr is not None:
        query = start + tl.arange(0, BLOCK_M)
        lse_ptr += tl.cast(batch * heads + head, tl.int64) * (2 * queries if adds(mask_ptr) else queries)
        tl.store(lse_ptr + query, lse, mask=query < queries)
        if adds(mask_ptr):
            tl.store(lse_ptr + queries + query, tl.log2(weight), mask=query < queries)


@triton.jit
def attention_delta_kernel(
    delta_ptr, o_ptr, do_ptr, o_strides, do_strides, heads, queries,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """delta = sum(o * do) of each row. The gradient of the softmax is dS = P * (dP - delta)."""
    o_strides, do_strides = spread(o_strides, FAR), spread(do_strides, FAR)
    batch, head, start = _place(queries, heads, BLOCK, False)
    o = _rows(o_ptr, None, o_strides, batch, head, start, queries, BLOCK, COLUMNS, True)
    do = _rows(do_ptr, None, do_strides, batch, head, start, queries, BLOCK, COLUMNS, True)
    query = start + tl.arange(0, BLOCK)
    delta_ptr += tl.cast(batch * heads + head, tl.int64) * queries
    tl.store(delta_ptr + query, tl.sum(o.to(tl.float32) * do.to(tl.float32), 1), mask=query < queries)


@triton.jit
def _attended(
    dk, dv, k, v, q_ptr, do_ptr, lse_ptr, delta_ptr, q_tiles, do_tiles, q_strides, do_strides, batch, head, start_k,
    first, last, queries, keys, score_scale, mask, mask_strides, window,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, COLUMNS: tl.constexpr, MASKED: tl.constexpr, EVEN: tl.constexpr,
    PADDED: tl.constexpr = False, log_ptr=None,
):  # fmt: skip
    """Accumulate dK and dV over queries ``first`` to ``last`` of one head. Scores are (keys, queries).

    ``PADDED``: lse and delta lie in memory up to the end of the last tile, infinity and 0 past the last query. Masks of them are
    many: each thread loads those of all its columns. ``log_ptr``: the second part of lse, read beside a mask of numbers alone.
    """
    for start in range(first, last, BLOCK_M):
        query = start + tl.arange(0, BLOCK_M)
        q = _rows(q_ptr, q_tiles, q_strides, batch, head, start, queries, BLOCK_M, COLUMNS, not EVEN)
        # Past the last query p is 2^(score - inf) = 0.
        lse = tl.load(lse_ptr + query) if PADDED else tl.load(lse_ptr + query, mask=query < queries, other=float("inf"))
        scores = tl.dot(k, q.T, input_precision="ieee") * score_scale
        if MASKED or mask is not None:
            key = start_k + tl.arange(0, BLOCK_N)[:, None]
        if mask is not None:
            scores = masked(scores, mask, mask_strides, query[None, :], key, queries, keys)
        log = None
        if adds(mask):
            log = tl.load(log_ptr + query) if PADDED else tl.load(log_ptr + query, mask=query < queries, other=0.0)
            log = log[None, :]
        p = softmax(scores, lse[None, :], log, mask)
        if MASKED:
            p = tl.where(key <= query[None, :], p, 0.0)
            if window is not None:
                p = tl.where(key > query[None, :] - window, p, 0.0)
        do = _rows(do_ptr, do_tiles, do_strides, batch, head, start, queries, BLOCK_M, COLUMNS, not EVEN)
        dv = tl.dot(p.to(do.dtype), do, dv, input_precision="ieee")
        delta = tl.load(delta_ptr + query) if PADDED else tl.load(delta_ptr + query, mask=query < queries, other=0.0)
        ds = p * (tl.dot(v, do.T, input_precision="ieee") - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
    return dk, dv


@triton.jit
def attention_backward_kv_kernel(
    dk_ptr, dv_ptr, do_ptr, q_ptr, k_ptr, v_ptr, lse_ptr, delta_ptr, do_tiles, q_tiles, dk_strides, dv_strides,
    do_strides, q_strides, k_strides, v_strides, kv_heads, queries, keys, scale, score_scale,
    mask_ptr, mask_strides, window,
    GROUP: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """Compute dK and dV of BLOCK_N keys of one head per program, over all queries of the GROUP heads that share it.

    ``EVEN``: ``queries`` is a multiple of BLOCK_M.
    """
    dk_strides, dv_strides, do_strides = spread(dk_strides, FAR), spread(dv_strides, FAR), spread(do_strides, FAR)
    q_strides, k_strides, v_strides = spread(q_strides, FAR), spread(k_strides, FAR), spread(v_strides, FAR)
    # Under a causal mask the first keys are seen by the most queries: the longest programs start first already.
    batch, kv_head, start_k = _place(keys, kv_heads, BLOCK_N, False)
    k = _rows(k_ptr, None, k_strides, batch, kv_head, start_k, keys, BLOCK_N, COLUMNS, True)
    v = _rows(v_ptr, None, v_strides, batch, kv_head, start_k, keys, BLOCK_N, COLUMNS, True)
    dk = tl.zeros((BLOCK_N, padded(COLUMNS)), tl.float32)
    dv = tl.zeros((BLOCK_N, padded(COLUMNS)), tl.float32)
    # Queries from ``seen`` on see some of these keys, without a window all of them from ``whole`` on, and none from ``last`` on.
    seen = start_k // BLOCK_M * BLOCK_M if CAUSAL else 0
    whole = tl.minimum(tl.cdiv(start_k + BLOCK_N - 1, BLOCK_M) * BLOCK_M, queries) if CAUSAL else 0
    last = queries if window is None else tl.minimum(start_k + BLOCK_N - 1 + window, queries)
    for member in range(GROUP):
        head = kv_head * GROUP + member
        row = tl.cast(batch * kv_heads * GROUP + head, tl.int64) * queries
        mask = mask_ptr
        if mask_ptr is not None:
            mask += _origin(mask_strides, batch, head, 0)
        lse = lse_ptr + (2 * row if adds(mask_ptr) else row)
        if CAUSAL and (GROUP > 1 or window is not None):
            # One masked loop: a masked and an unmasked one inside this loop need too many registers.
            dk, dv = _attended(
                dk, dv, k, v, q_ptr, do_ptr, lse, delta_ptr + row, q_tiles, do_tiles, q_strides, do_strides,
                batch, head, start_k, seen, last, queries, keys, score_scale, mask, mask_strides, window,
                BLOCK_M, BLOCK_N, COLUMNS, True, EVEN, False, lse + queries,
            )  # fmt: skip
        else:
            if CAUSAL:
                dk, dv = _attended(
                    dk, dv, k, v, q_ptr, do_ptr, lse, delta_ptr + row, q_tiles, do_tiles, q_strides,
                    do_strides, batch, head, start_k, seen, whole, queries, keys, score_scale, mask, mask_strides, window,
                    BLOCK_M, BLOCK_N, COLUMNS, True, EVEN, False, lse + queries,
                )  # fmt: skip
            dk, dv = _attended(
                dk, dv, k, v, q_ptr, do_ptr, lse, delta_ptr + row, q_tiles, do_tiles, q_strides, do_strides,
                batch, head, start_k, whole, queries, queries, keys, score_scale, mask, mask_strides, window,
                BLOCK_M, BLOCK_N, COLUMNS, False, EVEN, False, lse + queries,
            )  # fmt: skip
    _store_rows(dk_ptr, dk_strides, batch, kv_head, start_k, keys, dk * scale, BLOCK_N, COLUMNS)
    _store_rows(dv_ptr, dv_strides, batch, kv_head, start_k, keys, dv, BLOCK_N, COLUMNS)


@triton.jit
def _attending(
    dq, q, do, lse, delta, k_ptr, v_ptr, k_tiles, v_tiles, k_strides, v_strides, batch, head, start_q,
    first, last, queries, keys, score_scale, mask, mask_strides, window,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    log=None,
):  # fmt: skip
    """Accumulate dQ over keys ``first`` to ``last``. ``log``: the second part of ``lse`` (BLOCK_M, 1) beside a mask of numbers."""
    for start in range(first, last, BLOCK_N):
        k = _rows(k_ptr, k_tiles, k_strides, batch, head, start, keys, BLOCK_N, COLUMNS, MASKED)
        scores = tl.dot(q, k.T, input_precision="ieee") * score_scale
        if MASKED or mask is not None:
            query = start_q + tl.arange(0, BLOCK_M)[:, None]
            key = start + tl.arange(0, BLOCK_N)[None, :]
        if mask is not None:
            scores = masked(scores, mask, mask_strides, query, key, queries, keys)
        p = softmax(scores, lse[:, None], log, mask)
        v = _rows(v_ptr, v_tiles, v_strides, batch, head, start, keys, BLOCK_N, COLUMNS, MASKED)
        ds = p * (tl.dot(do, v.T, input_precision="ieee") - delta[:, None])
        if MASKED:
            ds = tl.where(_visible(query, key, keys, window, CAUSAL), ds, 0.0)
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")
    return dq


# Specialized on a single query or key, ptxas crashes with a segmentation fault under a causal mask (sm_90, CUDA 12.8).
@triton.jit(do_not_specialize=["queries", "keys"])
def attention_backward_q_kernel(
    dq_ptr, do_ptr, q_ptr, k_ptr, v_ptr, lse_ptr, delta_ptr, k_tiles, v_tiles, dq_strides, do_strides, q_strides,
    k_strides, v_strides, heads, queries, keys, scale, score_scale, mask_ptr, mask_strides, window,
    GROUP: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """Compute dQ of BLOCK_M queries of one head per program. ``EVEN``: ``keys`` is a multiple of BLOCK_N."""
    dq_strides, do_strides, q_strides = spread(dq_strides, FAR), spread(do_strides, FAR), spread(q_strides, FAR)
    k_strides, v_strides = spread(k_strides, FAR), spread(v_strides, FAR)
    batch, head, start = _place(queries, heads, BLOCK_M, CAUSAL)
    q = _rows(q_ptr, None, q_strides, batch, head, start, queries, BLOCK_M, COLUMNS, True)
    do = _rows(do_ptr, None, do_strides, batch, head, start, queries, BLOCK_M, COLUMNS, True)
    query = start + tl.arange(0, BLOCK_M)
    row = tl.cast(batch * heads + head, tl.int64) * queries
    part = 2 * row if adds(mask_ptr) else row
    lse = tl.load(lse_ptr + part + query, mask=query < queries, other=float("inf"))
    log = None
    if adds(mask_ptr):
        log = tl.load(lse_ptr + part + queries + query, mask=query < queries, other=0.0)[:, None]
    delta = tl.load(delta_ptr + row + query, mask=query < queries, other=0.0)
    dq = tl.zeros((BLOCK_M, padded(COLUMNS)), tl.float32)
    mask = mask_ptr
    if mask_ptr is not None:
        mask += _origin(mask_strides, batch, head, 0)
    first, begin, whole, end = _key_bounds(start, start + BLOCK_M, keys, window, BLOCK_N, CAUSAL)
    if window is not None:
        dq = _attending(
            dq, q, do, lse, delta, k_ptr, v_ptr, k_tiles, v_tiles, k_strides, v_strides, batch, head // GROUP, start,
            first, begin, queries, keys, score_scale, mask, mask_strides, window, BLOCK_M, BLOCK_N, COLUMNS, CAUSAL, True, log,
        )  # fmt: skip
    dq = _attending(
        dq, q, do, lse, delta, k_ptr, v_ptr, k_tiles, v_tiles, k_strides, v_strides, batch, head // GROUP, start,
        begin, whole, queries, keys, score_scale, mask, mask_strides, window, BLOCK_M, BLOCK_N, COLUMNS, CAUSAL, False, log,
    )  # fmt: skip
    if CAUSAL or not EVEN:
        dq = _attending(
            dq, q, do, lse, delta, k_ptr, v_ptr, k_tiles, v_tiles, k_strides, v_strides, batch, head // GROUP, start,
            whole, end, queries, keys, score_scale, mask, mask_strides, window, BLOCK_M, BLOCK_N, COLUMNS, CAUSAL, True, log,
        )  # fmt: skip
    _store_rows(dq_ptr, dq_strides, batch, head, start, queries, dq * scale, BLOCK_M, COLUMNS)
