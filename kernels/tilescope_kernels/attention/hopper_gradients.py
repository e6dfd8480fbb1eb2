"""The backward pass of attention on Hopper: of which kernels it is, and its three launches."""

from __future__ import annotations

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tilescope_kernels._shared.integers import cdiv, next_power_of_2
from tilescope_kernels._shared.launches import launch
from tilescope_kernels._shared.launching import device_of, multiprocessors
from tilescope_kernels.attention.flash import padded
from tilescope_kernels.attention.hopper import query_tiles, tiles
from tilescope_kernels.attention.hopper_backward import PART_COLUMNS, PART_ROWS, WIDTH, attention_backward_hopper_kernel
from tilescope_kernels.attention.hopper_backward_parts import PROGRAM, ROWS
from tilescope_kernels.attention.hopper_backward_sums import (
    attention_backward_q_sums_kernel,
    attention_backward_terms_kernel,
)
from tilescope_kernels.attention.hopper_backward_wide import (
    attention_backward_kv_wide_hopper_kernel,
    attention_backward_q_hopper_kernel,
)

#: Multiply-adds of a product of the smallest problem. 2x16x1024 of 64 columns goes back in 69 us, by the portable kernels in 88
#: (cuDNN 81), 1x12x1024 in 40 and 46 (42), 2x8x1000 of 128 columns in 68 and 74 (62; H200, 2026-11-27, torch 2.11, triton 3.6).
_LEAST = 8 * 10**8
#: Elements of q and of do in a block of one pass, and its blocks in shared memory: all that there is. 4x32x4096 of 128 columns went
#: back in 6.3 ms and goes in 4.9, under a causal mask 3.8 and 2.7 (cuDNN 5.0 and 2.8); of 64 columns 4.4 and 2.9, under a causal mask
#: 2.4 and 1.7 (cuDNN 3.0 and 1.8; GPU time, cold L2, H200, 2026-11-26, torch 2.11, triton 3.6).
_BLOCK, _STAGES = 8192, 2
#: Bytes of the heads whose programs run together under a causal mask: of each column q, do and its sum of dQ. With all of 128 heads
#: together 4x32x4096 takes 4.3 ms for 2.7.
_TOGETHER = 32 * 2**20
#: Rows of a block and blocks in shared memory in two passes, for dK and dV and for dQ. 4x16x4096 of 256 columns went back in
#: 12.8 ms and goes in 5.5, under a causal mask 8.0 and 3.1 (cuDNN 6.6 and 3.6; kernel durations, H200, 2026-11-26, torch 2.11,
#: triton 3.6).
_KV, _Q = {"BLOCK": 64, "STAGES": 2}, {"BLOCK": 32, "STAGES": 3}
#: Each thread's numbers of its warpgroup's share of dQ, 16 bytes after 16 bytes.
_LINES = gl.SharedLinearLayout(
    [[0, 1], [8, 0], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0], [16, 0], [32, 0], [0, 8], [0, 16], [0, 32]]
)
_SUM_LAYOUT = gl.NVMMASharedLayout(0, 32, 2)
_SUM_BLOCK = [PART_ROWS.value * PART_COLUMNS.value // WIDTH.value, WIDTH.value]


def backward_serves(q: torch.Tensor, k: torch.Tensor) -> bool:
    """Whether there are programs enough for these launches, and enough to do."""
    batch, heads, queries, columns = q.shape
    tiles_of_heads = cdiv(queries, PROGRAM.value) * batch * heads
    return padded(columns) >= 64 and 2 * tiles_of_heads >= multiprocessors(q) and q.numel() * k.shape[2] >= _LEAST


def backward(
    dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor, do: torch.Tensor, q: torch.Tensor, k: torch.Tensor,
    v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor, causal: bool, scale: float, score_scale: float,
) -> None:  # fmt: skip
    """Write dQ, dK and dV. All but ``lse`` (fp32) are in 16 bits, and descriptors reach their rows."""
    passes = _in_one_pass if padded(q.shape[3]) <= 128 else _in_two_passes
    passes(dq, dk, dv, do, q, k, v, o, lse, causal, scale, score_scale)


def _in_two_passes(
    dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor, do: torch.Tensor, q: torch.Tensor, k: torch.Tensor,
    v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor, causal: bool, scale: float, score_scale: float,
) -> None:  # fmt: skip
    (batch, heads, queries, columns), (kv_heads, keys) = q.shape, k.shape[1:3]
    rows = cdiv(queries, PROGRAM.value) * PROGRAM.value
    row_programs = rows // 64 * batch * heads
    terms = torch.empty((batch, heads, 3, rows), dtype=torch.float32, device=q.device)
    shared = {"GROUP": heads // kv_heads, "COLUMNS": padded(columns), "CAUSAL": causal, "num_warps": 4}
    with device_of(q):  # Of descriptors a launch does not know it.
        launch(
            attention_backward_terms_kernel, (row_programs,),
            terms, None, None, o, do, lse, k, v, *(t.stride()[:3] for t in (o, do, k, v)),
            heads, kv_heads, queries, keys, rows, 0, row_programs,
            COLUMNS=columns, PADDED=padded(columns), num_warps=4,
        )  # fmt: skip
        launch(
            attention_backward_kv_wide_hopper_kernel, (cdiv(keys, ROWS.value) * batch * kv_heads,),
            query_tiles(dk), query_tiles(dv), tiles(do, _KV["BLOCK"]), tiles(q, _KV["BLOCK"]), query_tiles(k), query_tiles(v),
            terms, kv_heads, queries, keys, rows, scale, score_scale, **_KV, **shared,
        )  # fmt: skip
        launch(
            attention_backward_q_hopper_kernel, (rows // PROGRAM.value * batch * heads,),
            query_tiles(dq), query_tiles(do), query_tiles(q), tiles(k, _Q["BLOCK"]), tiles(v, _Q["BLOCK"]),
            terms, heads, keys, queries, rows, scale, score_scale, **_Q, **shared,
        )  # fmt: skip


def _in_one_pass(
    dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor, do: torch.Tensor, q: torch.Tensor, k: torch.Tensor,
    v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor, causal: bool, scale: float, score_scale: float,
) -> None:  # fmt: skip
    (batch, heads, queries, columns), (kv_heads, keys) = q.shape, k.shape[1:3]
    width, parts = padded(columns), cdiv(keys, 64)
    block = _BLOCK // width
    rows = cdiv(queries, block) * block
    row_programs = rows // 64 * batch * heads
    terms = torch.empty((batch, heads, 3, rows), dtype=torch.float32, device=q.device)
    bounds = torch.empty((batch, kv_heads, 2, parts), dtype=torch.float32, device=q.device)
    sums = torch.empty((batch * heads * rows * width // WIDTH.value, WIDTH.value), dtype=torch.int32, device=q.device)
    sum_tiles = TensorDescriptor(sums, list(sums.shape), list(sums.stride()), _SUM_BLOCK, _SUM_LAYOUT)
    programs = cdiv(keys, PROGRAM.value)
    # Of fewer programs than multiprocessors the short ones of one lot would be followed by the long ones of the last: 1x32x8192 on 8
    # heads of keys took 2.82 ms and takes 2.55 to 2.6, 2x16x4096 of 96 columns on 4 took 0.94 and takes 0.71.
    together = max(cdiv(multiprocessors(q), programs), _TOGETHER // (heads // kv_heads * queries * width * 8))
    with device_of(q):  # Of descriptors a launch does not know it.
        launch(
            attention_backward_terms_kernel, (row_programs + parts * batch * kv_heads,),
            terms, bounds, sums, o, do, lse, k, v, *(t.stride()[:3] for t in (o, do, k, v)),
            heads, kv_heads, queries, keys, rows, parts, row_programs,
            COLUMNS=columns, PADDED=width, num_warps=4,
        )  # fmt: skip
        launch(
            attention_backward_hopper_kernel, (programs * batch * kv_heads,),
            query_tiles(dk), query_tiles(dv), sum_tiles, tiles(do, block), tiles(q, block), query_tiles(k), query_tiles(v),
            terms, bounds, kv_heads, queries, keys, rows, parts, together, scale, score_scale,
            GROUP=heads // kv_heads, COLUMNS=width, CAUSAL=causal, BLOCK=block, STAGES=_STAGES, LINES=_LINES, num_warps=4,
        )  # fmt: skip
        launch(
            attention_backward_q_sums_kernel, (row_programs,),
            dq, sums, terms, bounds, dq.stride()[:3], heads, heads // kv_heads, queries, rows, parts, scale,
            COLUMNS=columns, PADDED=width, PARTS=next_power_of_2(parts), num_warps=4,
        )  # fmt: skip
