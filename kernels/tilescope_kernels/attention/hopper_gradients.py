"""Launches of attention's backward pass on Hopper: in one pass for up to 128 columns a head, else in two."""

from __future__ import annotations

import math

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tilescope_kernels._shared.launching import cdiv, launch, multiprocessors, next_power_of_2
from tilescope_kernels._shared.plans import Form
from tilescope_kernels._shared.reach import is_far
from tilescope_kernels.attention import hopper_backward, hopper_backward_sums
from tilescope_kernels.attention.attention_configs import padded
from tilescope_kernels.attention.hopper import LINES, tiles
from tilescope_kernels.attention.hopper_backward import PART_COLUMNS, PART_ROWS, PROGRAM, ROWS, WIDTH

#: One pass: elements of a tile of q or do, and stages. They fill shared memory.
_BLOCK, _STAGES = 8192, 2
#: Bytes of q, do and the sums of dQ of the heads that run at the same time under a causal mask, so that they stay in L2.
_TOGETHER = 16 * 2**20
#: Shared tiles of keys: most tiles per SM, most shares of a tile and fewest steps (tiles of queries) of a share; time that a program
#: takes to start and to end, in steps; elements of dK that are stored and added up in the time of a step; the largest part of the time
#: that sharing may leave.
_FEW, _MOST_SHARES, _FEWEST = 4, 16, 4
_STARTING, _ELEMENTS, _PAYS = 6.0, 500_000, 0.9
#: Two passes: rows of a tile and stages, for dK and dV and for dQ.
_KV, _Q = {"BLOCK": 64, "STAGES": 2}, {"BLOCK": 32, "STAGES": 3}
#: Descriptor of a warpgroup's share of dQ in memory.
_SUM_LAYOUT = gl.NVMMASharedLayout(0, 32, 2)


def shares(q: torch.Tensor, k: torch.Tensor, causal: bool) -> int:
    """Programs that share the queries of each tile of keys in one pass, so that all SMs have about as much to do: 1 where there are
    many tiles, or little would be saved.
    """
    (batch, heads, queries, columns), (kv_heads, keys) = q.shape, k.shape[1:3]
    block, group, processors = _BLOCK // padded(columns), heads // kv_heads, multiprocessors(q)
    tiles, blocks = cdiv(keys, PROGRAM.value), cdiv(queries, block)
    programs = tiles * batch * kv_heads
    if programs > _FEW * processors:
        return 1
    # Under a causal mask each tile of keys has ``later`` tiles of queries less than the one before.
    later = PROGRAM.value // block if causal else 0
    seen = min(tiles, cdiv(blocks, later)) if causal else tiles
    steps, mean = group * blocks, group * (seen * blocks - later * seen * (seen - 1) // 2) / tiles
    adding = programs * PROGRAM.value * columns / _ELEMENTS

    def time(shares: int) -> float:
        """In steps, of the programs and of adding up."""
        waves = programs * shares / processors
        waves = waves if causal else math.ceil(waves)
        # The longest program may be the last to start.
        longest, each = cdiv(steps, shares) + _STARTING, mean / shares + _STARTING
        return (longest + waves * each if causal else max(longest, waves * each)) + (shares > 1) * shares * adding

    best = min(range(1, max(min(steps // _FEWEST, _MOST_SHARES), 1) + 1), key=time)
    return best if time(best) <= _PAYS * time(1) else 1


def in_two_passes(
    dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor, do: torch.Tensor, q: torch.Tensor, k: torch.Tensor,
    v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor, causal: bool, scale: float, score_scale: float,
) -> None:  # fmt: skip
    """Write dQ, dK and dV. All tensors but ``lse`` (fp32) are 16-bit, with rows that TMA can load."""
    from tilescope_kernels.attention import hopper_backward_wide  # noqa: PLC0415 - few models have such heads

    (batch, heads, queries, columns), (kv_heads, keys) = q.shape, k.shape[1:3]
    rows = cdiv(queries, PROGRAM.value) * PROGRAM.value
    row_programs = rows // 64 * batch * heads
    terms = torch.empty((batch, heads, 3, rows), dtype=torch.float32, device=q.device)
    shared = {"GROUP": heads // kv_heads, "COLUMNS": padded(columns), "CAUSAL": causal, "num_warps": 4}
    launch(
        hopper_backward_sums.attention_backward_terms_kernel, (row_programs,),
        terms, None, None, o, do, lse, k, v, *(t.stride()[:3] for t in (o, do, k, v)),
        heads, kv_heads, queries, keys, rows, 0, row_programs,
        COLUMNS=columns, PADDED=padded(columns), FAR=is_far(*(t.stride(2) for t in (o, do))), num_warps=4,
    )  # fmt: skip
    launch(
        hopper_backward_wide.attention_backward_kv_wide_hopper_kernel, (cdiv(keys, ROWS.value) * batch * kv_heads,),
        tiles(dk).of(dk), tiles(dv).of(dv), tiles(do, _KV["BLOCK"]).of(do), tiles(q, _KV["BLOCK"]).of(q), tiles(k).of(k), tiles(v).of(v),
        terms, kv_heads, queries, keys, rows, scale, score_scale, **_KV, **shared,
    )  # fmt: skip
    launch(
        hopper_backward_wide.attention_backward_q_hopper_kernel, (rows // PROGRAM.value * batch * heads,),
        tiles(dq).of(dq), tiles(do).of(do), tiles(q).of(q), tiles(k, _Q["BLOCK"]).of(k), tiles(v, _Q["BLOCK"]).of(v),
        terms, heads, keys, queries, rows, scale, score_scale, **_Q, **shared,
    )  # fmt: skip


def in_one_pass(
    dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor, do: torch.Tensor, q: torch.Tensor, k: torch.Tensor,
    v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor, causal: bool, scale: float, score_scale: float,
) -> None:  # fmt: skip
    """As ``in_two_passes``, for heads of up to 128 columns."""
    (batch, heads, queries, columns), (kv_heads, keys) = q.shape, k.shape[1:3]
    width = padded(columns)
    parts, block = cdiv(keys, 64), _BLOCK // width
    rows = cdiv(queries, block) * block
    row_programs = rows // 64 * batch * heads
    terms = torch.empty((batch, heads, 3, rows), dtype=torch.float32, device=q.device)
    bounds = torch.empty((batch, kv_heads, 2, parts), dtype=torch.float32, device=q.device)
    sums = torch.empty((batch * heads * rows * width // WIDTH.value, WIDTH.value), dtype=torch.int32, device=q.device)
    part = [PART_ROWS.value * PART_COLUMNS.value // WIDTH.value, WIDTH.value]
    sum_tiles = Form(TensorDescriptor, list(sums.shape), list(sums.stride()), part, layout=_SUM_LAYOUT).of(sums)
    tiles_of_keys = cdiv(keys, PROGRAM.value)
    share = shares(q, k, causal)
    shared = None
    if share > 1:
        shape = (batch * kv_heads * tiles_of_keys, share, 2, PROGRAM.value, width)
        shared = torch.empty(shape, dtype=torch.float32, device=q.device)
    # At least a program per SM: else long programs of the last group of heads start after the short ones of the group before.
    together = max(
        cdiv(multiprocessors(q), tiles_of_keys * share), _TOGETHER // (heads // kv_heads * queries * width * 8)
    )
    launch(
        hopper_backward_sums.attention_backward_terms_kernel, (row_programs + parts * batch * kv_heads,),
        terms, bounds, sums, o, do, lse, k, v, *(t.stride()[:3] for t in (o, do, k, v)),
        heads, kv_heads, queries, keys, rows, parts, row_programs,
        COLUMNS=columns, PADDED=width, FAR=is_far(*(t.stride(2) for t in (o, do, k, v))), num_warps=4,
    )  # fmt: skip
    launch(
        hopper_backward.attention_backward_hopper_kernel, (tiles_of_keys * share * batch * kv_heads,),
        tiles(dk).of(dk), tiles(dv).of(dv), shared, sum_tiles, tiles(do, block).of(do), tiles(q, block).of(q), tiles(k).of(k), tiles(v).of(v),
        terms, bounds, kv_heads, queries, keys, rows, parts, together, share, cdiv(columns, 8), scale, score_scale,
        GROUP=heads // kv_heads, COLUMNS=width, CAUSAL=causal, BLOCK=block, STAGES=_STAGES, LINES=LINES, num_warps=4,
    )  # fmt: skip
    launch(
        hopper_backward_sums.attention_backward_sums_kernel,
        (row_programs + (4 * tiles_of_keys * batch * kv_heads if share > 1 else 0),),
        dq, dk, dv, sums, shared, terms, bounds, *(t.stride()[:3] for t in (dq, dk, dv)),
        heads, kv_heads, queries, keys, rows, parts, row_programs, scale,
        COLUMNS=columns, PADDED=width, PARTS=max(32, next_power_of_2(parts)), SHARES=share,
        FAR=is_far(*(t.stride(2) for t in (dq, dk, dv))), num_warps=4,
    )  # fmt: skip
