"""Backward pass of ``attention`` where there are few tiles: programs share a tile's loop, and the last to end adds their sums up.

Sums are added in the order of the programs' numbers, whichever ends last: gradients are deterministic.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.launching import cdiv, launch, multiprocessors
from tilescope_kernels._shared.reach import is_far
from tilescope_kernels.attention.attention_configs import SIDE_BY_SIDE, is_added, padded, tiles_of
from tilescope_kernels.attention.flash import (
    _attended,
    _attending,
    _key_bounds,
    _origin,
    _place,
    _rows,
    _store_rows,
    adds,
    spread,
)
from tilescope_kernels.spec import Config


@triton.jit(do_not_specialize=["queries"])
def attention_backward_row_terms_kernel(
    terms_ptr, counts_ptr, o_ptr, do_ptr, lse_ptr, o_strides, do_strides, heads, queries, rows, counts,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr, ADDED: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """lse and delta = sum(o * do) of each row. Also sets ``counts`` (at most BLOCK a program) integers to 0.

    ``terms`` (batch, heads, 2, rows) in fp32. Past the last query they are infinity and 0, so that p = 2^(score - infinity) is 0.
    ``ADDED``: beside a mask of numbers lse has two parts (batch, heads, 2, queries), and there are three terms, its second part last.
    """
    o_strides, do_strides = spread(o_strides, FAR), spread(do_strides, FAR)
    batch, head, start = _place(rows, heads, BLOCK, False)
    o = _rows(o_ptr, None, o_strides, batch, head, start, queries, BLOCK, COLUMNS, True).to(tl.float32)
    do = _rows(do_ptr, None, do_strides, batch, head, start, queries, BLOCK, COLUMNS, True).to(tl.float32)
    query = start + tl.arange(0, BLOCK)
    place = tl.cast(batch * heads + head, tl.int64)
    part = (2 * place if ADDED else place) * queries
    lse = tl.load(lse_ptr + part + query, mask=query < queries, other=float("inf"))
    terms_ptr += (3 if ADDED else 2) * place * rows
    tl.store(terms_ptr + query, lse)
    tl.store(terms_ptr + rows + query, tl.sum(o * do, 1))
    if ADDED:
        log = tl.load(lse_ptr + part + queries + query, mask=query < queries, other=0.0)
        tl.store(terms_ptr + 2 * rows + query, log)
    for first in range(tl.program_id(0) * BLOCK, counts, tl.num_programs(0) * BLOCK):
        count = first + tl.arange(0, BLOCK)
        tl.store(counts_ptr + count, 0, mask=count < counts)


@triton.jit
def _store_part(ptr, values, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    tl.store(ptr + tl.arange(0, ROWS)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :], values)


@triton.jit
def _sum_parts(ptr, parts, stride, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Sum of what all programs of a tile have stored. Past L1, which may not know what other SMs have written."""
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    pointers = ptr + tl.arange(0, ROWS)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    for _ in range(parts):
        total += tl.load(pointers, cache_modifier=".cg")
        pointers += stride
    return total


@triton.jit
def _is_last(count_ptr, parts):
    """Whether the other programs of a tile have stored their parts. A barrier first: all warps of this one have."""
    tl.debug_barrier()
    return tl.atomic_add(count_ptr, 1, sem="acq_rel") == parts - 1


@triton.jit
def _kv_tile(
    dk_ptr, dv_ptr, parts_ptr, counts_ptr, do_ptr, q_ptr, k_ptr, v_ptr, terms_ptr, dk_strides, dv_strides, do_strides,
    q_strides, k_strides, v_strides, kv_heads, queries, keys, rows, scale, score_scale, mask_ptr, mask_strides, window,
    tile, part, head_parts, spans,
    GROUP: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dK and dV of BLOCK_N keys: of 1 / ``head_parts`` of the group's heads, and 1 / ``spans`` of the queries."""
    WIDTH: tl.constexpr = padded(COLUMNS)
    SIZE: tl.constexpr = BLOCK_N * WIDTH
    blocks = tl.cdiv(keys, BLOCK_N)
    batch, kv_head, start_k = tile // blocks // kv_heads, tile // blocks % kv_heads, tile % blocks * BLOCK_N
    k = _rows(k_ptr, None, k_strides, batch, kv_head, start_k, keys, BLOCK_N, COLUMNS, True)
    v = _rows(v_ptr, None, v_strides, batch, kv_head, start_k, keys, BLOCK_N, COLUMNS, True)
    dk = tl.zeros((BLOCK_N, WIDTH), tl.float32)
    dv = tl.zeros((BLOCK_N, WIDTH), tl.float32)
    first = start_k // BLOCK_M * BLOCK_M if CAUSAL else 0
    last = queries if window is None else tl.minimum(start_k + BLOCK_N - 1 + window, queries)
    span = tl.cdiv(tl.cdiv(last - first, BLOCK_M), spans) * BLOCK_M
    first += part % spans * span
    last = tl.minimum(first + span, last)
    members = GROUP // head_parts
    member = kv_head * GROUP + part // spans * members
    for head in range(member, member + members):
        terms = terms_ptr + (3 if adds(mask_ptr) else 2) * tl.cast(batch * kv_heads * GROUP + head, tl.int64) * rows
        mask = mask_ptr
        if mask_ptr is not None:
            mask += _origin(mask_strides, batch, head, 0)
        dk, dv = _attended(
            dk, dv, k, v, q_ptr, do_ptr, terms, terms + rows, None, None, q_strides, do_strides,
            batch, head, start_k, first, last, queries, keys, score_scale, mask, mask_strides, window,
            BLOCK_M, BLOCK_N, COLUMNS, CAUSAL, EVEN, True, terms + 2 * rows,
        )  # fmt: skip
    parts = head_parts * spans
    whole = parts == 1
    if not whole:
        parts_ptr += 2 * SIZE * parts * tl.cast(tile, tl.int64)
        _store_part(parts_ptr + 2 * SIZE * part, dk, BLOCK_N, WIDTH)
        _store_part(parts_ptr + 2 * SIZE * part + SIZE, dv, BLOCK_N, WIDTH)
        whole = _is_last(counts_ptr + tile, parts)
        if whole:
            dk = _sum_parts(parts_ptr, parts, 2 * SIZE, BLOCK_N, WIDTH)
            dv = _sum_parts(parts_ptr + SIZE, parts, 2 * SIZE, BLOCK_N, WIDTH)
    if whole:
        _store_rows(dk_ptr, dk_strides, batch, kv_head, start_k, keys, dk * scale, BLOCK_N, COLUMNS)
        _store_rows(dv_ptr, dv_strides, batch, kv_head, start_k, keys, dv, BLOCK_N, COLUMNS)


@triton.jit
def _q_tile(
    dq_ptr, parts_ptr, counts_ptr, do_ptr, q_ptr, k_ptr, v_ptr, terms_ptr, dq_strides, do_strides, q_strides, k_strides,
    v_strides, heads, queries, keys, rows, scale, score_scale, mask_ptr, mask_strides, window, tile, part, spans,
    GROUP: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dQ of BLOCK_M queries, of 1 / ``spans`` of the keys that they see."""
    WIDTH: tl.constexpr = padded(COLUMNS)
    SIZE: tl.constexpr = BLOCK_M * WIDTH
    blocks = tl.cdiv(queries, BLOCK_M)
    batch, head, start = tile // blocks // heads, tile // blocks % heads, tile % blocks * BLOCK_M
    q = _rows(q_ptr, None, q_strides, batch, head, start, queries, BLOCK_M, COLUMNS, True)
    do = _rows(do_ptr, None, do_strides, batch, head, start, queries, BLOCK_M, COLUMNS, True)
    PARTS: tl.constexpr = 3 if adds(mask_ptr) else 2
    terms_ptr += PARTS * tl.cast(batch * heads + head, tl.int64) * rows + start + tl.arange(0, BLOCK_M)
    lse, delta = tl.load(terms_ptr), tl.load(terms_ptr + rows)
    log = None
    if adds(mask_ptr):
        log = tl.load(terms_ptr + 2 * rows)[:, None]
    dq = tl.zeros((BLOCK_M, WIDTH), tl.float32)
    mask = mask_ptr
    if mask_ptr is not None:
        mask += _origin(mask_strides, batch, head, 0)
    first, _, whole, last = _key_bounds(start, start + BLOCK_M, keys, window, BLOCK_N, CAUSAL)
    span = tl.cdiv(tl.cdiv(last - first, BLOCK_N), spans) * BLOCK_N
    first += part * span
    last = tl.minimum(first + span, last)
    if window is None:
        dq = _attending(
            dq, q, do, lse, delta, k_ptr, v_ptr, None, None, k_strides, v_strides, batch, head // GROUP, start,
            first, tl.minimum(whole, last), queries, keys, score_scale, mask, mask_strides, window,
            BLOCK_M, BLOCK_N, COLUMNS, CAUSAL, False, log,
        )  # fmt: skip
        first = tl.maximum(first, whole)
    if CAUSAL or not EVEN:
        dq = _attending(
            dq, q, do, lse, delta, k_ptr, v_ptr, None, None, k_strides, v_strides, batch, head // GROUP, start,
            first, last, queries, keys, score_scale, mask, mask_strides, window, BLOCK_M, BLOCK_N, COLUMNS, CAUSAL, True, log,
        )  # fmt: skip
    done = spans == 1
    if not done:
        parts_ptr += SIZE * spans * tl.cast(tile, tl.int64)
        _store_part(parts_ptr + SIZE * part, dq, BLOCK_M, WIDTH)
        done = _is_last(counts_ptr + tile, spans)
        if done:
            dq = _sum_parts(parts_ptr, spans, SIZE, BLOCK_M, WIDTH)
    if done:
        _store_rows(dq_ptr, dq_strides, batch, head, start, queries, dq * scale, BLOCK_M, COLUMNS)


# Specialized on a single query or key, ptxas crashes with a segmentation fault under a causal mask (sm_90, CUDA 12.8).
@triton.jit(do_not_specialize=["queries", "keys", "kv_tiles", "head_parts", "spans", "q_spans"])
def attention_backward_split_kernel(
    dq_ptr, dk_ptr, dv_ptr, kv_parts_ptr, q_parts_ptr, counts_ptr, do_ptr, q_ptr, k_ptr, v_ptr, terms_ptr,
    dq_strides, dk_strides, dv_strides, do_strides, q_strides, k_strides, v_strides, kv_heads, queries, keys, rows,
    scale, score_scale, mask_ptr, mask_strides, window, kv_tiles, head_parts, spans, q_spans,
    GROUP: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr, EVEN_QUERIES: tl.constexpr,
    EVEN_KEYS: tl.constexpr, KV_M: tl.constexpr, KV_N: tl.constexpr, Q_M: tl.constexpr, Q_N: tl.constexpr,
    FAR: tl.constexpr,
):  # fmt: skip
    """Compute all gradients in one launch, of ``kv_tiles * head_parts * spans`` programs for tiles of keys, then ``q_spans`` for each
    tile of queries.

    ``head_parts`` divides GROUP. ``terms`` and ``counts``, an integer 0 for each tile, come from
    ``attention_backward_row_terms_kernel``. ``kv_parts`` and ``q_parts`` have room for a tile in fp32 (two for keys) of each program.
    """
    dq_strides, dk_strides, dv_strides = spread(dq_strides, FAR), spread(dk_strides, FAR), spread(dv_strides, FAR)
    do_strides, q_strides = spread(do_strides, FAR), spread(q_strides, FAR)
    k_strides, v_strides = spread(k_strides, FAR), spread(v_strides, FAR)
    parts = head_parts * spans
    program = tl.program_id(0)
    if program < kv_tiles * parts:
        _kv_tile(
            dk_ptr, dv_ptr, kv_parts_ptr, counts_ptr, do_ptr, q_ptr, k_ptr, v_ptr, terms_ptr, dk_strides, dv_strides,
            do_strides, q_strides, k_strides, v_strides, kv_heads, queries, keys, rows, scale, score_scale,
            mask_ptr, mask_strides, window, program // parts, program % parts, head_parts, spans,
            GROUP, COLUMNS, CAUSAL, EVEN_QUERIES, KV_M, KV_N,
        )  # fmt: skip
    else:
        program -= kv_tiles * parts
        _q_tile(
            dq_ptr, q_parts_ptr, counts_ptr + kv_tiles, do_ptr, q_ptr, k_ptr, v_ptr, terms_ptr, dq_strides, do_strides,
            q_strides, k_strides, v_strides, kv_heads * GROUP, queries, keys, rows, scale, score_scale,
            mask_ptr, mask_strides, window, program // q_spans, program % q_spans, q_spans,
            GROUP, COLUMNS, CAUSAL, EVEN_KEYS, Q_M, Q_N,
        )  # fmt: skip


#: Fewest products of tiles for a program that shares a loop: storing its part and adding parts up takes time.
_PRODUCTS = 24


def _parts(kv_tiles: int, q_tiles: int, group: int, kv_steps: int, q_steps: int, slots: int) -> tuple[int, int, int]:
    """Parts of a group's heads, spans of the queries and spans of the keys, for about ``slots`` programs.

    A tile of keys takes ``kv_steps`` of four products for each head, a tile of queries ``q_steps`` of three.
    """
    shared = 4 * kv_steps * group >= 2 * _PRODUCTS and kv_tiles * group + q_tiles <= slots
    heads = group if shared else 1
    spans = slots // (kv_tiles * heads + q_tiles)
    kv_spans, q_spans = (min(spans, products // _PRODUCTS) for products in (4 * kv_steps, 3 * q_steps))
    return heads, max(kv_spans, 1), max(q_spans, 1)


def backward_of_few(
    dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor, do: torch.Tensor, q: torch.Tensor, k: torch.Tensor,
    v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor, causal: bool, scale: float, score_scale: float,
    mask: torch.Tensor | None, window: int | None, chosen: Config,
) -> None:  # fmt: skip
    """Write dQ, dK and dV."""
    (batch, heads, queries, columns), (kv_heads, keys) = q.shape, k.shape[1:3]
    kv_m, kv_n, q_m, q_n = (chosen[name] for name in ("KV_M", "KV_N", "Q_M", "Q_N"))
    (kv_tiles, q_tiles), width = tiles_of(q, k, chosen), padded(columns)
    # Under a causal mask half of the steps are skipped, and short programs make room for others.
    slots = SIDE_BY_SIDE * multiprocessors(q) * (3 if causal else 2) // 2
    head_parts, spans, q_spans = _parts(
        kv_tiles, q_tiles, heads // kv_heads, cdiv(queries, kv_m), cdiv(keys, q_n), slots
    )
    parts = head_parts * spans
    whole = max(64, kv_m, q_m)
    rows = cdiv(queries, whole) * whole
    added, far = is_added(mask), is_far(*(t.stride(2) for t in (dq, dk, dv, do, q, k, v, o)))
    terms = torch.empty((batch, heads, 3 if added else 2, rows), dtype=torch.float32, device=q.device)
    counts = torch.empty((kv_tiles + q_tiles,), dtype=torch.int32, device=q.device)
    kv_parts = torch.empty(
        (2 * kv_tiles * parts if parts > 1 else 0, kv_n, width), dtype=torch.float32, device=q.device
    )
    q_parts = torch.empty((q_tiles * q_spans if q_spans > 1 else 0, q_m, width), dtype=torch.float32, device=q.device)
    launch(
        attention_backward_row_terms_kernel, (rows // 64 * batch * heads,),
        terms, counts, o, do, lse, o.stride()[:3], do.stride()[:3], heads, queries, rows, len(counts),
        COLUMNS=columns, BLOCK=64, ADDED=added, FAR=far, num_warps=4,
    )  # fmt: skip
    launch(
        attention_backward_split_kernel, (kv_tiles * parts + q_tiles * q_spans,),
        dq, dk, dv, kv_parts, q_parts, counts, do, q, k, v, terms, *(t.stride()[:3] for t in (dq, dk, dv, do, q, k, v)),
        kv_heads, queries, keys, rows, scale, score_scale, mask, None if mask is None else mask.stride(), window,
        kv_tiles, head_parts, spans, q_spans,
        GROUP=heads // kv_heads, COLUMNS=columns, CAUSAL=causal, EVEN_QUERIES=queries % kv_m == 0, EVEN_KEYS=keys % q_n == 0,
        KV_M=kv_m, KV_N=kv_n, Q_M=q_m, Q_N=q_n, FAR=far, num_warps=chosen["KV_WARPS"], num_stages=chosen["KV_STAGES"],
    )  # fmt: skip
