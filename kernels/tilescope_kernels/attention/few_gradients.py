"""Launches of attention's backward pass where there are few tiles: their loops are split, so that every SM has work."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tilescope_kernels._shared.launching import cdiv, launch, multiprocessors
from tilescope_kernels._shared.reach import is_far
from tilescope_kernels.attention.flash import padded
from tilescope_kernels.attention.flash_split import (
    attention_backward_row_terms_kernel,
    attention_backward_split_kernel,
)
from tilescope_kernels.attention.masks import is_added

#: Fewest products of tiles for a program that shares a loop: storing its part and adding parts up takes time.
_PRODUCTS = 24
#: Programs per SM up to which tiles are few: all programs are resident at once.
_SIDE_BY_SIDE = 2


def _tiles_of(q: torch.Tensor, k: torch.Tensor, chosen: Mapping[str, int]) -> tuple[int, int]:
    """Number of tiles of keys and of queries."""
    (batch, heads, queries, _), (kv_heads, keys) = q.shape, k.shape[1:3]
    return cdiv(keys, chosen["KV_N"]) * batch * kv_heads, cdiv(queries, chosen["Q_M"]) * batch * heads


def few(q: torch.Tensor, k: torch.Tensor, chosen: Mapping[str, int]) -> bool:
    """Whether dK, dV and dQ fit in one launch: with the same warps and stages, and all programs resident at once."""
    alike = all(chosen[f"KV_{name}"] == chosen[f"Q_{name}"] for name in ("WARPS", "STAGES"))
    return alike and sum(_tiles_of(q, k, chosen)) <= _SIDE_BY_SIDE * multiprocessors(q)


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
    mask: torch.Tensor | None, window: int | None, chosen: Mapping[str, int],
) -> None:  # fmt: skip
    """Write dQ, dK and dV."""
    (batch, heads, queries, columns), (kv_heads, keys) = q.shape, k.shape[1:3]
    kv_m, kv_n, q_m, q_n = (chosen[name] for name in ("KV_M", "KV_N", "Q_M", "Q_N"))
    (kv_tiles, q_tiles), width = _tiles_of(q, k, chosen), padded(columns)
    # Under a causal mask half of the steps are skipped, and short programs make room for others.
    slots = _SIDE_BY_SIDE * multiprocessors(q) * (3 if causal else 2) // 2
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
