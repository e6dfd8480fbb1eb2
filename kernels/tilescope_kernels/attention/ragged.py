"""Attention within packed sequences of any lengths (varlen), as in training without padding.

The algorithm, and most of the code, is that of ``flash``. The host never waits for the GPU: kernels read the bounds of the sequences.
Gradients are deterministic. Tensors are (rows, heads, COLUMNS). The functions of ``flash`` see one batch (1, heads, rows, COLUMNS);
``*_strides`` are its strides of batch, head and row. ``q_bounds`` and ``k_bounds`` (sequences + 1,) hold each sequence's first row and the
end of the last one. Row numbers count from the start of the tensor. The causal mask is aligned to a sequence's end: a query's place among
the keys is its row plus the difference of both ends.

The grid is that of ``sequences + 1`` sequences of ``longest`` rows. A program past the end of its sequence returns at once.
Programs of the extra sequence write zeros to the rows after the last one.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch.nn.attention import SDPBackend, sdpa_kernel

from tilescope_kernels._shared.checks import check_alike, check_integers, check_tensors, check_together, use_triton
from tilescope_kernels._shared.launching import cdiv, launch, shared_memory
from tilescope_kernels._shared.operators import neighbours, operator, pack, rows_like, wants_grad
from tilescope_kernels._shared.reach import is_far
from tilescope_kernels.attention.attention import _MOST
from tilescope_kernels.attention.attention_configs import checked_scale, chosen_config, padded
from tilescope_kernels.attention.flash import (
    _attend,
    _attended,
    _attending,
    _key_bounds,
    _place,
    _rows,
    _store_rows,
    attention_delta_kernel,
    spread,
)
from tilescope_kernels.spec import FORWARD, Config, Cost, Draw, Implementation, Workload, declare, drawn


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


def _config(*passes: tuple[int, int, int, int]) -> dict[str, int]:
    """Config from queries, keys, warps and stages of the forward kernel, of the dK/dV kernel and of the dQ kernel."""
    names = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")
    keys = (names, *(tuple(f"{loop}_{name}" for name in ("M", "N", "WARPS", "STAGES")) for loop in ("KV", "Q")))
    return {key: part for of, parts in zip(keys, passes, strict=True) for key, part in zip(of, parts, strict=True)}


#: The three kernels are tuned independently: config i takes the i-th candidate of each list. On an H200 the first is the fastest for
#: 65 to 128 columns, the second for fewer. TMA descriptors were no faster there.
_FORWARD = (
    (64, 64, 4, 3), (64, 64, 4, 3), (128, 64, 8, 3), (64, 64, 4, 2), (64, 64, 4, 4), (128, 64, 4, 3), (128, 128, 8, 2),
    (64, 128, 4, 2), (64, 32, 4, 4), (128, 32, 8, 3),
)  # fmt: skip
_BACKWARD_KV = (
    (32, 64, 4, 3), (32, 64, 4, 2), (64, 64, 4, 2), (64, 128, 8, 2), (32, 128, 8, 3), (32, 128, 8, 2), (32, 64, 4, 4), (64, 64, 8, 2),
    (16, 64, 4, 3), (32, 64, 8, 3),
)  # fmt: skip
_BACKWARD_Q = (
    (64, 32, 4, 3), (64, 64, 4, 3), (64, 64, 4, 2), (128, 32, 8, 3), (128, 64, 8, 2), (128, 64, 8, 3), (64, 32, 4, 4), (64, 32, 4, 2),
    (64, 16, 4, 4), (128, 128, 8, 2),
)  # fmt: skip
CONFIGS = tuple(_config(*parts) for parts in zip(_FORWARD, _BACKWARD_KV, _BACKWARD_Q, strict=True))


def _view(tensor: torch.Tensor) -> torch.Tensor:
    """View a packed tensor (rows, heads, columns) as one batch (1, heads, rows, columns)."""
    return tensor.transpose(0, 1).unsqueeze(0)


def _chosen(q: torch.Tensor, causal: bool, config: str) -> Mapping[str, int]:
    """The requested config, or the fastest known."""
    if not config and q.dtype != torch.float32 and q.shape[2] <= 128 and shared_memory(q) >= 227 * 1024:
        return CONFIGS[q.shape[2] <= 64]
    return chosen_config(_view(q), causal, config, True)


@operator(
    "ragged_attention",
    autocast="lower",
    fake=lambda q, *rest: (rows_like(q), q.new_empty((q.shape[1], q.shape[0]) if rest[8] else 0, dtype=torch.float32)),
)
def _ragged(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_bounds: torch.Tensor, k_bounds: torch.Tensor,
    longest_q: int, longest_k: int, causal: bool, scale: float, save: bool, config: str,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The output, and each row's log-sum-exp in base 2 (heads, rows) in fp32, or an empty tensor unless ``save``."""
    (rows, heads, columns), sequences = q.shape, len(q_bounds) - 1
    o = rows_like(q)
    lse = torch.empty((heads, rows) if save else (0,), dtype=torch.float32, device=q.device)
    if o.numel() == 0 or longest_q == 0:
        return o.zero_(), lse
    chosen = _chosen(q, causal, config)
    m, n = chosen["BLOCK_M"], chosen["BLOCK_N"]
    launch(
        ragged_attention_kernel, (cdiv(longest_q, m) * (sequences + 1) * heads,),
        o, lse if save else None, q, k, v, q_bounds, k_bounds, *(_view(t).stride()[:3] for t in (o, q, k, v)),
        heads, rows, sequences, longest_q, scale * math.log2(math.e),
        GROUP=heads // k.shape[1], COLUMNS=columns, CAUSAL=causal, BLOCK_M=m, BLOCK_N=n,
        num_warps=chosen["num_warps"], num_stages=chosen["num_stages"], FAR=is_far(*(t.stride(0) for t in (o, q, k, v))),
    )  # fmt: skip
    return o, lse


@operator("ragged_attention_backward", fake=lambda _, *qkv: tuple(map(rows_like, qkv[:3])))
def _ragged_backward(
    do: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor,
    q_bounds: torch.Tensor, k_bounds: torch.Tensor, longest_q: int, longest_k: int, causal: bool, scale: float, config: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """dQ, dK and dV, like ``q``, ``k`` and ``v``."""
    (rows, heads, columns), (key_rows, kv_heads), sequences = q.shape, k.shape[:2], len(q_bounds) - 1
    dq, dk, dv = (rows_like(t) for t in (q, k, v))
    if dq.numel() == 0 or dk.numel() == 0 or longest_q == 0 or longest_k == 0:
        return dq.zero_(), dk.zero_(), dv.zero_()
    chosen, score_scale = _chosen(q, causal, config), scale * math.log2(math.e)
    delta = lse.new_empty(lse.shape)
    far = is_far(*(t.stride(0) for t in (dq, dk, dv, do, q, k, v, o)))
    shared = {"GROUP": heads // kv_heads, "COLUMNS": columns, "CAUSAL": causal, "FAR": far}
    dq_strides, dk_strides, dv_strides, o_strides, *strides = (
        _view(t).stride()[:3] for t in (dq, dk, dv, o, do, q, k, v)
    )
    launch(
        attention_delta_kernel, (cdiv(rows, 64) * heads,),
        delta, o, do, o_strides, strides[0], heads, rows, COLUMNS=columns, BLOCK=64, FAR=far, num_warps=4,
    )  # fmt: skip
    m, n = chosen["KV_M"], chosen["KV_N"]
    launch(
        ragged_backward_kv_kernel, (cdiv(longest_k, n) * (sequences + 1) * kv_heads,),
        dk, dv, do, q, k, v, lse, delta, q_bounds, k_bounds, dk_strides, dv_strides, *strides,
        kv_heads, rows, key_rows, sequences, longest_k, scale, score_scale,
        BLOCK_M=m, BLOCK_N=n, num_warps=chosen["KV_WARPS"], num_stages=chosen["KV_STAGES"], **shared,
    )  # fmt: skip
    m, n = chosen["Q_M"], chosen["Q_N"]
    launch(
        ragged_backward_q_kernel, (cdiv(longest_q, m) * (sequences + 1) * heads,),
        dq, do, q, k, v, lse, delta, q_bounds, k_bounds, dq_strides, *strides, heads, rows, sequences, longest_q, scale, score_scale,
        BLOCK_M=m, BLOCK_N=n, num_warps=chosen["Q_WARPS"], num_stages=chosen["Q_STAGES"], **shared,
    )  # fmt: skip
    return dq, dk, dv


@_ragged.gradient(lambda q, k, v, q_bounds, k_bounds, *rest: (q, k, v, *rest[-2:], q_bounds, k_bounds))
def _differentiate(ctx: Any, do: torch.Tensor) -> tuple[torch.Tensor, ...]:
    *rest, _, config = ctx.rest
    return _ragged_backward(neighbours(do), *ctx.saved_tensors, *rest, config)


def _check(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bounds: Mapping[str, torch.Tensor], longest: Mapping[str, int]
) -> None:  # fmt: skip
    check_tensors(query=query, key=key, value=value)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 3:
            raise ValueError(f"{name} has {tensor.dim()} dimensions: give (rows, heads, columns)")
    heads, columns = query.shape[1:]
    if not 1 <= columns <= _MOST:
        raise ValueError(f"query has {columns} columns a head: give 1 to {_MOST}")
    if key.shape[2] != columns or key.shape[1] == 0 or heads % key.shape[1]:
        raise ValueError(
            f"key has shape {tuple(key.shape)}: give {columns} columns, and a number of heads that divides query's {heads}"
        )
    check_alike(key=key, value=value)
    check_integers(**bounds)
    for name, tensor in bounds.items():
        if tensor.dim() != 1 or len(tensor) == 0 or len(tensor) != len(bounds["cu_seqlens_q"]):
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}: give both as many numbers, one more than sequences"
            )
    check_together(query=query, **bounds)
    for name, number in longest.items():
        if not isinstance(number, int) or number < 0:
            raise ValueError(f"{name} is {number!r}: give the rows of the longest sequence, as an int")


def ragged_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int, max_seqlen_k: int, *, is_causal: bool = False, scale: float | None = None,
    config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """Attention within each sequence of packed tensors (rows, heads, columns); once differentiable.

    Takes the arguments of ``flash_attn_varlen_func``. Sequence i is rows ``cu_seqlens_q[i]`` to ``cu_seqlens_q[i + 1]`` of
    ``query``, and likewise of ``key`` and ``value`` by ``cu_seqlens_k``. Both are int32 on the GPU, start with 0 and never
    decrease. ``max_seqlen_q`` and ``max_seqlen_k`` are at least the rows of the longest sequence; a longer one is computed only
    in part. None of this is checked, because that would wait for the GPU. Rows after the last sequence get zeros.

    ``is_causal`` is aligned to the end of a sequence, as in FlashAttention from 2.1 on, not to its start, as in PyTorch's
    ``scaled_dot_product_attention``: with n queries and m keys, query i sees keys 0 to i + m - n. A query that sees no key gets
    zeros. Each head of ``key`` and ``value`` may serve several consecutive heads of ``query``. ``scale`` is 1 / sqrt(columns)
    by default, and at least 0. Dtypes are fp32, fp16 and bf16, with 1 to 256 columns and any strides; a last stride other than
    1 costs a copy. Sequences may be empty, or none. Gradients are deterministic. ``config`` is one of ``CONFIGS``. Raises
    ValueError, naming the argument, for what is not supported.
    """
    if use_triton():
        bounds = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
        _check(query, key, value, bounds, {"max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k})
    scale = checked_scale(scale, query)
    if not use_triton():
        return _composed(query, key, value, cu_seqlens_q, cu_seqlens_k, is_causal, scale)
    q, k, v = (neighbours(tensor) for tensor in (query, key, value))
    return _ragged(
        q, k, v, cu_seqlens_q.contiguous(), cu_seqlens_k.contiguous(), max_seqlen_q, max_seqlen_k, is_causal, scale,
        wants_grad(query, key, value), pack(config),
    )[0]  # fmt: skip


def _composed(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
    is_causal: bool, scale: float,
) -> torch.Tensor:  # fmt: skip
    group, results = query.shape[1] // key.shape[1], []
    # Start with an empty sequence, so that there is at least one.
    bounds = [0, *cu_seqlens_q.tolist()], [0, *cu_seqlens_k.tolist()]
    for (first, last), (first_k, last_k) in zip(*map(pairwise, bounds), strict=True):
        q = query[first:last].transpose(0, 1)
        k, v = (t[first_k:last_k].transpose(0, 1).repeat_interleave(group, 0) for t in (key, value))
        scores = q @ k.mT * scale
        hidden = torch.zeros(scores.shape[1:], dtype=torch.bool, device=scores.device)
        if is_causal:
            hidden = (~hidden).triu(1 + (last_k - first_k) - (last - first))
        # The softmax of a row that sees no key is NaN: set its weights to 0.
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1).masked_fill(hidden, 0.0)
        results.append((weights @ v).transpose(0, 1))
    return torch.cat([*results, torch.zeros_like(query[bounds[0][-1] :])])


def reference(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int, max_seqlen_k: int, is_causal: bool,
) -> torch.Tensor:  # fmt: skip
    """Attention of one sequence after another in plain PyTorch, one operation at a time. Synchronizes with the GPU."""
    return _composed(query, key, value, cu_seqlens_q, cu_seqlens_k, is_causal, 1 / math.sqrt(query.shape[2]))


def _varlen(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int, max_seqlen_k: int, is_causal: bool,
) -> torch.Tensor:  # fmt: skip
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - older PyTorch lacks it

    # PyTorch 2.12 introduced the option and requires it.
    options = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
    window = (-1, 0) if is_causal else (-1, -1)
    bounds = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    result: torch.Tensor = varlen_attn(query, key, value, *bounds, window_size=window, **options)
    return result


def _padded(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int, max_seqlen_k: int, is_causal: bool,
) -> torch.Tensor:  # fmt: skip
    """Pad to the longest sequence. With as many queries as keys, the causal mask hides the padding."""
    place = torch.arange(max_seqlen_q, device=query.device)
    rows = (cu_seqlens_q[:-1, None] + place).clamp(max=max(len(query) - 1, 0)).flatten()
    batch = (len(cu_seqlens_q) - 1, max_seqlen_q)
    q, k, v = (t.index_select(0, rows).unflatten(0, batch).transpose(1, 2) for t in (query, key, value))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        o = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=key.shape[1] != query.shape[1])
    row = torch.arange(len(query), device=query.device)
    sequence = torch.searchsorted(cu_seqlens_q[1:], row, right=True)
    return o.transpose(1, 2).flatten(0, 1).index_select(0, sequence * max_seqlen_q + row - cu_seqlens_q[sequence])


def _lengths(workload: Workload) -> list[int]:
    """Rows of each sequence, drawn from the seed: uniform from 1 to ``longest``."""
    sequences, longest = workload.dims["sequences"], workload.dims["longest"]
    numbers = torch.Generator().manual_seed(workload.seed)
    return torch.randint(min(1, longest), longest + 1, (sequences,), generator=numbers).tolist()


@drawn
def inputs(draw: Draw, sequences: int, kv_heads: int, group: int, longest: int, columns: int) -> dict[str, Any]:
    """Packed sequences for causal self-attention: standard normal, of random lengths up to ``longest``.

    ``group`` query heads share each head of keys and values.
    """
    lengths = _lengths(draw.workload)
    ends, longest = [0, *accumulate(lengths)], max(lengths, default=0)
    return {
        "query": draw(ends[-1], kv_heads * group, columns, grad=True),
        **{name: draw(ends[-1], kv_heads, columns, grad=True) for name in ("key", "value")},
        **{f"cu_seqlens_{of}": torch.tensor(ends, dtype=torch.int32, device=draw.device) for of in "qk"},
        "max_seqlen_q": longest,
        "max_seqlen_k": longest,
        "is_causal": True,
    }


def cost(workload: Workload, direction: str) -> Cost:
    """As ``causal_cost`` of ``attention``, for each sequence, and the bytes of the sequences' bounds."""
    _, kv_heads, group, _, columns = workload.dims.values()
    lengths = _lengths(workload)
    pairs = kv_heads * group * sum(length * (length + 1) // 2 for length in lengths)
    q_size = sum(lengths) * kv_heads * group * columns * workload.itemsize
    kv_size, bounds = 2 * q_size // group if group else 0, 2 * 4 * (len(lengths) + 1)
    if direction == FORWARD:
        return Cost(4 * pairs * columns, q_size + kv_size + bounds, q_size, workload.pipe)
    # Reads q, o, do, k and v; writes dq, dk and dv.
    return Cost(10 * pairs * columns, 3 * q_size + kv_size + bounds, q_size + kv_size, workload.pipe)


SPEC = declare(
    "ragged_attention", "causal attention within each of the sequences that are packed in one tensor",
    "sequences kv_heads group longest columns",
    "small 2x2x1x100x64-bf16, medium 8x8x2x1024x64-bf16, large 16x16x1x4096x128-bf16, ragged 5x3x2x517x64-fp16, "
    "grouped 16x8x4x4096x128-bf16, short 64x16x1x512x128-bf16, empty 0x8x1x1024x128-bf16",
    triton=Implementation(ragged_attention, "one pass over keys and values, grid of the longest", CONFIGS),
    eager=Implementation(reference, "one sequence after another: scores in memory"),
    fa2=Implementation(_varlen, "PyTorch's varlen_attn, FlashAttention-2"),
    cudnn=Implementation(_padded, "padded to the longest for PyTorch's SDPA, cuDNN backend, and back"),
    compile=None,
    reference=reference, inputs=inputs, cost=cost, tolerance={"fp32": 1e-5, "fp16": 1.1e-3, "bf16": 9e-3},
    passes="forward backward",
)  # fmt: skip
