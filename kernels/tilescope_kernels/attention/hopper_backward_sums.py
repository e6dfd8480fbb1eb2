"""Prologue and epilogue of attention's backward pass on Hopper: terms of rows, bounds of keys, and dQ from integer sums.

Programs add their parts of dQ up in fixed point, because sums of integers do not depend on the order and those of floats
do. Each row has its own unit, chosen so that no sum can overflow (``row_units``).
"""

from __future__ import annotations

import triton
import triton.language as tl

from tilescope_kernels.attention.flash import _place, _rows, _store_rows, spread


@triton.jit
def _of_eights(strides, COLUMNS: tl.constexpr):
    """Strides of a tensor that TMA can load, multiples of 8, in a form that proves it where COLUMNS do not let Triton see it.

    It tells only multiples of 16 from other integers, and would load and store element by element.
    """
    if COLUMNS % 16 == 8:
        return strides[0] // 8 * 8, strides[1] // 8 * 8, strides[2] // 8 * 8
    else:
        return strides


@triton.jit
def _norms(x):
    """Euclidean norm of each row, without intermediate overflow. Infinity where an element is not finite."""
    largest = tl.max(tl.where(tl.abs(x) < float("inf"), tl.abs(x), float("inf")), 1)
    scaled = x / tl.maximum(largest, 1e-37)[:, None]
    norms = largest * tl.sqrt(tl.sum(scaled * scaled, 1))
    return tl.where(largest < float("inf"), norms, float("inf"))


@triton.jit
def _row_terms(
    terms_ptr, sums_ptr, o_ptr, do_ptr, lse_ptr, o_strides, do_strides, heads, queries, rows,
    COLUMNS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    batch, head, start = _place(rows, heads, 64, False)
    o_strides, do_strides = _of_eights(o_strides, COLUMNS), _of_eights(do_strides, COLUMNS)
    o = _rows(o_ptr, None, o_strides, batch, head, start, queries, 64, COLUMNS, True).to(tl.float32)
    do = _rows(do_ptr, None, do_strides, batch, head, start, queries, 64, COLUMNS, True).to(tl.float32)
    query = start + tl.arange(0, 64)
    place = tl.cast(batch * heads + head, tl.int64)
    lse = tl.load(lse_ptr + place * queries + query, mask=query < queries, other=float("inf"))
    if sums_ptr is not None:
        sums_ptr += (place * rows + start) * PADDED
        tl.store(sums_ptr + tl.arange(0, 64 * PADDED), tl.zeros([64 * PADDED], tl.int32))
    terms_ptr += 3 * place * rows
    tl.store(terms_ptr + query, lse)
    delta = tl.sum(o * do, 1)
    tl.store(terms_ptr + rows + query, delta)
    # Also 0 where the output is not finite, as the query then is: integers would make 0 of its NaN.
    weighs = (query < queries) & (tl.abs(delta) < float("inf"))
    tl.store(terms_ptr + 2 * rows + query, tl.where(weighs, 1.0 / tl.maximum(_norms(do), 1e-37), 0.0))


@triton.jit
def _key_bounds(bounds_ptr, k_ptr, v_ptr, k_strides, v_strides, kv_heads, keys, parts, program, COLUMNS: tl.constexpr):
    part, place = program % parts, program // parts
    batch, head = place // kv_heads, place % kv_heads
    k_strides, v_strides = _of_eights(k_strides, COLUMNS), _of_eights(v_strides, COLUMNS)
    k = _rows(k_ptr, None, k_strides, batch, head, part * 64, keys, 64, COLUMNS, True).to(tl.float32)
    v = _rows(v_ptr, None, v_strides, batch, head, part * 64, keys, 64, COLUMNS, True).to(tl.float32)
    bounds_ptr += 2 * tl.cast(place, tl.int64) * parts + part
    tl.store(bounds_ptr, tl.max(tl.where(tl.abs(k) < float("inf"), tl.abs(k), float("inf"))))
    tl.store(bounds_ptr + parts, tl.max(_norms(v), 0))


@triton.jit(do_not_specialize=["queries", "keys", "parts", "row_programs"])
def attention_backward_terms_kernel(
    terms_ptr, bounds_ptr, sums_ptr, o_ptr, do_ptr, lse_ptr, k_ptr, v_ptr, o_strides, do_strides, k_strides, v_strides,
    heads, kv_heads, queries, keys, rows, parts, row_programs,
    COLUMNS: tl.constexpr, PADDED: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """Compute terms of each query and bounds of the keys, and zero the sums of dQ. ``sums`` and ``bounds`` may be None.

    ``terms`` (batch, heads, 3, rows) in fp32: each query's lse, delta = sum(o * do) and 1 / norm(do). Past the last query they are
    infinity, 0 and 0, so that p = 2^(score - infinity) is 0; the last is 0 where delta is not finite, too. ``bounds`` (batch,
    kv_heads, 2, parts) in fp32: the largest absolute element of each 64 keys, and the largest norm of their values, computed
    by programs from ``row_programs`` on.
    """
    o_strides, do_strides = spread(o_strides, FAR), spread(do_strides, FAR)
    k_strides, v_strides = spread(k_strides, FAR), spread(v_strides, FAR)
    if tl.program_id(0) < row_programs:
        _row_terms(
            terms_ptr, sums_ptr, o_ptr, do_ptr, lse_ptr, o_strides, do_strides, heads, queries, rows, COLUMNS, PADDED
        )
    elif bounds_ptr is not None:
        _key_bounds(
            bounds_ptr, k_ptr, v_ptr, k_strides, v_strides, kv_heads, keys, parts, tl.program_id(0) - row_programs, COLUMNS
        )  # fmt: skip


@triton.jit
def _q_from_sums(
    dq_ptr, sums_ptr, terms_ptr, bounds_ptr, dq_strides, heads, group, queries, rows, parts, scale,
    COLUMNS: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Convert the sums of 64 queries of a head to dQ. They lie in memory in the order of the warpgroups' registers."""
    batch, head, start = _place(rows, heads, 64, False)
    place = tl.cast(batch * heads + head, tl.int64)
    query = start + tl.arange(0, 64)
    part = tl.arange(0, PARTS)
    bounds_ptr += 2 * (place // group) * parts
    largest_key = tl.max(tl.load(bounds_ptr + part, mask=part < parts, other=0.0), 0)
    largest_value = tl.max(tl.load(bounds_ptr + parts + part, mask=part < parts, other=0.0), 0)
    inverse = tl.load(terms_ptr + (3 * place + 2) * rows + query)
    inverse_key, value_units = bound_units(largest_key, largest_value)
    units = row_units(inverse, inverse_key, value_units)
    sums_ptr += (place * rows + start) * PADDED
    given = tl.load(sums_ptr + tl.arange(0, 64 * PADDED))
    # Axes: 64 columns, 8 columns, warp (16 rows), row, 2 columns, 8 rows, column.
    given = tl.permute(tl.reshape(given, [PADDED // 64, 8, 4, 8, 4, 2, 2]), [2, 5, 3, 0, 1, 4, 6])
    dq = tl.reshape(given, [64, PADDED]).to(tl.float32) * tl.where(units > 0, scale / units, float("nan"))[:, None]
    dq_strides = _of_eights(dq_strides, COLUMNS)
    _store_rows(dq_ptr, dq_strides, batch, head, start, queries, dq.to(dq_ptr.dtype.element_ty), 64, COLUMNS)


@triton.jit
def _kv_from_shares(
    dk_ptr, dv_ptr, shares_ptr, dk_strides, dv_strides, kv_heads, keys, program,
    COLUMNS: tl.constexpr, PADDED: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """Add up what the programs that shared a tile of 128 keys have stored of dK and dV, for 32 of them."""
    tiles = tl.cdiv(keys, 128)
    tile = program // 4
    row = program % 4 * 32 + tl.arange(0, 32)[:, None]
    column = tl.arange(0, PADDED)[None, :]
    shares_ptr += tl.cast(tile, tl.int64) * (SHARES * 2 * 128 * PADDED) + row * PADDED + column
    dk = tl.zeros([32, PADDED], tl.float32)
    dv = tl.zeros([32, PADDED], tl.float32)
    for share in tl.static_range(SHARES):
        dk += tl.load(shares_ptr + 2 * share * 128 * PADDED, mask=column < COLUMNS, other=0.0)
        dv += tl.load(shares_ptr + (2 * share + 1) * 128 * PADDED, mask=column < COLUMNS, other=0.0)
    head = tile // tiles
    batch, head, start = head // kv_heads, head % kv_heads, tile % tiles * 128 + program % 4 * 32
    _store_rows(dk_ptr, _of_eights(dk_strides, COLUMNS), batch, head, start, keys, dk, 32, COLUMNS)
    _store_rows(dv_ptr, _of_eights(dv_strides, COLUMNS), batch, head, start, keys, dv, 32, COLUMNS)


@triton.jit(do_not_specialize=["queries", "keys", "parts", "row_programs"])
def attention_backward_sums_kernel(
    dq_ptr, dk_ptr, dv_ptr, sums_ptr, shares_ptr, terms_ptr, bounds_ptr, dq_strides, dk_strides, dv_strides,
    heads, kv_heads, queries, keys, rows, parts, row_programs, scale,
    COLUMNS: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr, SHARES: tl.constexpr,
    FAR: tl.constexpr,
):  # fmt: skip
    """Compute dQ from its sums and, by programs from ``row_programs`` on, dK and dV of shared tiles from what each share stored."""
    dq_strides, dk_strides, dv_strides = spread(dq_strides, FAR), spread(dk_strides, FAR), spread(dv_strides, FAR)
    if tl.program_id(0) < row_programs:
        _q_from_sums(
            dq_ptr, sums_ptr, terms_ptr, bounds_ptr, dq_strides, heads, heads // kv_heads, queries, rows, parts, scale,
            COLUMNS, PADDED, PARTS,
        )  # fmt: skip
    elif shares_ptr is not None:
        _kv_from_shares(
            dk_ptr, dv_ptr, shares_ptr, dk_strides, dv_strides, kv_heads, keys, tl.program_id(0) - row_programs,
            COLUMNS, PADDED, SHARES,
        )  # fmt: skip


@triton.jit
def bound_units(largest_key, largest_value):
    """Factors of ``row_units`` from a head's keys and values: 1 / bound and 2^27 / bound. Not finite ones give 0."""
    return 1.0 / tl.maximum(largest_key, 1e-37), 134217728.0 / tl.maximum(largest_value, 1e-30)


@triton.jit
def row_units(inverse, inverse_key, value_units):
    """Units per 1.0 of a row of dQ (before ``scale``) in fixed point.

    2^28 units are norm(do) * 2 * max norm(v) * max |k|. That bounds |dQ|: dS = P * (do . v - do . o), o is a mean of values, and rows
    of P sum to 1. An int32 has room for rows of P that sum to 8.
    """
    return tl.minimum(tl.minimum(inverse * value_units, 8.507059173023462e37) * inverse_key, 8.507059173023462e37)
