"""Product of two FP8 or INT8 matrices, scaled in the epilogue.

``a`` is (M, K) and ``b`` (K, N), both with stride 1 along K, the only order in which tensor cores take one-byte operands.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.descriptors import workspace
from tilescope_kernels._shared.launching import capability, multiprocessors, shared_memory
from tilescope_kernels._shared.launching import launch as start
from tilescope_kernels._shared.reach import is_far
from tilescope_kernels._shared.tile_order import _scaled, kind, programs, tile_origin


@triton.jit
def pointer_operands(
    a_ptr, b_ptr, M, N, K, stride_am, stride_bn, start_m, start_n, start_k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """Load tiles (BLOCK_M, BLOCK_K) of a and (BLOCK_K, BLOCK_N) of b through pointers, zeros past the edges."""
    m = tl.arange(0, BLOCK_M)[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    k = tl.arange(0, BLOCK_K)
    valid_a, valid_b = start_m + m < M, start_n + n < N
    if not EVEN_K:
        valid_a = valid_a & (k[None, :] < K - start_k)
        valid_b = valid_b & (k[:, None] < K - start_k)
    # Only a tile's origin needs int64; offsets within a tile are int32, unless its rows lie far apart.
    if FAR:
        m, n = m.to(tl.int64), n.to(tl.int64)
    a_tile = a_ptr + start_m.to(tl.int64) * stride_am + start_k + m * stride_am + k[None, :]
    b_tile = b_ptr + start_n.to(tl.int64) * stride_bn + start_k + n * stride_bn + k[:, None]
    return tl.load(a_tile, mask=valid_a, other=0.0), tl.load(b_tile, mask=valid_b, other=0.0)


@triton.jit
def scaled_matmul_kernel(
    a_ptr, b_ptr, c_ptr, scale_a_ptr, scale_b_ptr, M, N, K, stride_am, stride_bn, stride_cm,
    SCALES: tl.constexpr, FAST: tl.constexpr, INTEGER: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    TMA: tl.constexpr, HALVES: tl.constexpr, EVEN_K: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """Compute tiles ``program, program + programs, ...`` through tensor descriptors (``TMA``), or a tile per program.

    Accumulates in int32 (``INTEGER``) or fp32. Hopper's tensor cores accumulate FP8 products with 14 bits; unless ``FAST``,
    the sum of each ``BLOCK_K`` of them is added in fp32 registers. ``HALVES``: a tile is stored in two halves, which needs
    half the shared memory. ``FAR``: rows lie so far apart that offsets within a tile need int64.
    """
    imprecise: tl.constexpr = None if FAST else BLOCK_K
    sums: tl.constexpr = tl.int32 if INTEGER else tl.float32
    if TMA:
        a_tiles = tl.make_tensor_descriptor(a_ptr, [M, K], [stride_am, 1], [BLOCK_M, BLOCK_K])
        b_tiles = tl.make_tensor_descriptor(b_ptr, [N, K], [stride_bn, 1], [BLOCK_N, BLOCK_K])
        c_tiles = tl.make_tensor_descriptor(c_ptr, [M, N], [stride_cm, 1], [BLOCK_M, BLOCK_N // (1 + HALVES)])
        tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
        # flatten merges this loop with the one over K, so that the next tile's loads overlap this tile's epilogue.
        for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
            start_m, start_n = tile_origin(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
            total = tl.zeros((BLOCK_M, BLOCK_N), sums)
            for step in range(0, tl.cdiv(K, BLOCK_K)):
                a = a_tiles.load([start_m, step * BLOCK_K])
                b = b_tiles.load([start_n, step * BLOCK_K])
                total = tl.dot(a, b.T, total, max_num_imprecise_acc=imprecise, out_dtype=sums)
            c = _scaled(total, scale_a_ptr, scale_b_ptr, start_m, start_n, M, N, SCALES)
            if HALVES:
                left, right = c.reshape(BLOCK_M, 2, BLOCK_N // 2).permute(0, 2, 1).split()
                c_tiles.store([start_m, start_n], left.to(c_ptr.dtype.element_ty))
                c_tiles.store([start_m, start_n + BLOCK_N // 2], right.to(c_ptr.dtype.element_ty))
            else:
                c_tiles.store([start_m, start_n], c.to(c_ptr.dtype.element_ty))
    else:
        start_m, start_n = tile_origin(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
        total = tl.zeros((BLOCK_M, BLOCK_N), sums)
        for start_k in range(0, K, BLOCK_K):
            a, b = pointer_operands(
                a_ptr, b_ptr, M, N, K, stride_am, stride_bn, start_m, start_n, start_k, BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, FAR,
            )  # fmt: skip
            total = tl.dot(a, b, total, max_num_imprecise_acc=imprecise, out_dtype=sums)
        c = _scaled(total, scale_a_ptr, scale_b_ptr, start_m, start_n, M, N, SCALES)
        m = tl.arange(0, BLOCK_M)[:, None]
        n = tl.arange(0, BLOCK_N)[None, :]
        if FAR:
            m = m.to(tl.int64)
        c_tile = c_ptr + start_m.to(tl.int64) * stride_cm + start_n + m * stride_cm + n
        tl.store(c_tile, c.to(c_ptr.dtype.element_ty), mask=(start_m + m < M) & (start_n + n < N))


def config(
    m: int, n: int, k: int, warps: int, stages: int, tma: int = 0, halves: int = 0, group: int = 8
) -> dict[str, int]:
    """Config of ``scaled_matmul_kernel``."""
    blocks = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": group, "TMA": tma, "HALVES": halves}
    return {**blocks, "num_warps": warps, "num_stages": stages}


#: Configs: large tiles first, with the most reuse, then small ones for small products.
TUNED = tuple(
    config(*parts)
    for parts in (
        (128, 256, 128, 8, 3, 1, 1, 4), (128, 256, 128, 8, 3, 1, 0, 16), (128, 256, 128, 8, 4, 1, 1, 4),
        (128, 256, 128, 8, 3, 1, 1, 16), (128, 128, 128, 8, 4, 1, 0, 16), (128, 128, 128, 4, 4, 1), (64, 256, 128, 4, 4, 1),
        (128, 128, 128, 8, 3), (128, 256, 128, 8, 3), (128, 128, 64, 4, 4), (64, 128, 128, 4, 4), (64, 64, 128, 4, 4),
        (64, 64, 64, 4, 3),
    )
)  # fmt: skip

#: Configs for INT8 on Hopper.
_OF_INTEGERS = {
    "whole": config(128, 128, 128, 8, 3, group=16),
    "askew": config(128, 128, 128, 8, 4, 1, group=16),
    "few": config(64, 64, 128, 4, 4),
}
#: Bytes of a memory sector.
_SECTOR = 32


def _shared(known: Mapping[str, int], out_bytes: int) -> int:
    """Bytes of shared memory for a config's operands and, with TMA, for the part of the tile that is being stored."""
    m, n = known["BLOCK_M"], known["BLOCK_N"]
    return (m + n) * known["BLOCK_K"] * known["num_stages"] + out_bytes * m * n * known["TMA"] // (1 + known["HALVES"])


def sweep(out_bytes: int) -> tuple[dict[str, int], ...]:
    """Configs of the sweep for results of ``out_bytes`` bytes an element, the best guess first.

    Dropped: more than 128 accumulators per thread (they spill), fewer than 32 (the tile is too small for its warps), and
    more than 227 KB of shared memory for the operands and, with TMA, the part of the tile that is being stored.
    """

    def fits(known: Mapping[str, int]) -> bool:
        each = known["BLOCK_M"] * known["BLOCK_N"] // (32 * known["num_warps"])
        return 32 <= each <= 128 and _shared(known, out_bytes) <= 226 * 1024

    sizes = ((128, 256), (256, 128), (128, 128), (64, 256), (64, 128), (64, 64))
    descriptors = [
        config(m, n, k, w, s, 1, h)
        for m, n in sizes[:4] for k in (128, 64) for w in (8, 4) for s in (3, 4, 5) for h in (0, 1)
    ]  # fmt: skip
    pointers = [config(m, n, k, w, s) for m, n in sizes for k in (128, 64) for w in (4, 8) for s in (3, 4)]
    grouped = [{**known, "GROUP_M": group} for known in TUNED[:5] for group in (4, 8, 16)]
    every = [*TUNED, *grouped, *descriptors, *pointers]
    return tuple(known for i, known in enumerate(every) if fits(known) and known not in every[:i])


def tma_serves(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> bool:
    """Whether TMA can load a and b (N, K) and store c: Hopper or later, 16-byte aligned rows, no row that repeats."""
    rows = [(t.stride(0), t.element_size(), t.data_ptr()) for t in (a, b, c)]
    aligned = all(stride > 0 and stride * size % 16 == start % 16 == 0 for stride, size, start in rows)
    return aligned and not (a.is_cuda and capability(a) < 90)


def default(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Mapping[str, int]:
    """The config if none is given: large tiles if every SM gets one, else the smallest."""
    short = a.shape[1] <= 128
    if triton.cdiv(c.shape[0], 128) * triton.cdiv(c.shape[1], 256) < multiprocessors(a):
        return TUNED[-1] if short else TUNED[-2]
    # For INT8 pointers are faster.
    tma, room = a.dtype != torch.int8 and tma_serves(a, b, c), shared_memory(c) - 1024
    fitting = (known for known in TUNED[4 if short else 0 :] if _shared(known, c.element_size()) <= room)
    return next(known for known in fitting if known["TMA"] <= tma)


def _integer(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> dict[str, int]:
    """The config for INT8 on Hopper: with pointers, or with descriptors where rows do not start at memory sectors.

    The first of the configs is the fastest, or nearly so, at all sizes timed. Rows of uneven length are faster through descriptors.
    """
    m, n = c.shape
    if n <= 64 or triton.cdiv(m, 128) * triton.cdiv(n, 128) < multiprocessors(a):
        return _OF_INTEGERS["few"]
    whole = all(t.stride(0) % _SECTOR == 0 and t.data_ptr() % _SECTOR == 0 for t in (a, b))
    return _OF_INTEGERS["whole" if whole or not tma_serves(a, b, c) else "askew"]


def launch(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, scales: tuple[torch.Tensor, torch.Tensor] | tuple[None, None],
    fast: bool, given: Mapping[str, int] | None,
) -> None:  # fmt: skip
    """Write ``c`` (M, N) = a (M, K) @ b (N, K).T. ``fast`` is the kernel's ``FAST``.

    Raises ValueError for a config ``given`` that the operands do not allow.
    """
    if given is None:
        given = (_integer if a.dtype == torch.int8 and capability(a) == 90 else default)(a, b, c)
    if given["TMA"] and not tma_serves(a, b, c):
        raise ValueError("config has TMA=1, which these operands or this GPU do not allow: use one with TMA=0")
    (m, k), n = a.shape, b.shape[0]
    strides = a.stride(0), b.stride(0), c.stride(0)
    triton.set_allocator(workspace)
    start(
        scaled_matmul_kernel, programs(m, n, given, a), a, b, c, *scales, m, n, k, *strides, SCALES=kind(scales), FAST=fast,
        INTEGER=a.dtype == torch.int8, EVEN_K=k % given["BLOCK_K"] == 0, FAR=is_far(*strides), **given,
    )  # fmt: skip
