"""Split-K products of up to a few hundred 16-bit rows and INT8 weights, so that every SM has a part.

Tiles are computed as ``weight @ x.T``, as in ``w8a16_matmul``. On Hopper, where larger tiles give every SM a part,
``w8a16_hopper`` is faster.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tilescope_kernels._shared.descriptors import tiles
from tilescope_kernels._shared.integers import cdiv
from tilescope_kernels._shared.launches import launch
from tilescope_kernels._shared.launching import capability, multiprocessors, shared_memory
from tilescope_kernels.matrix_products.scaled_matmul import tma_serves


@triton.jit
def w8a16_split_kernel(
    y_ptr, x_tiles, weight_tiles, scale_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute a tile per program, over one of SPLIT parts of K, ``program_id(1)``.

    With several parts y is (SPLIT, M, N) in fp32, not scaled. ``PDL``: programmatic dependent launch.
    """
    if PDL:
        gdc_launch_dependents()
    start_n, start_m = tl.program_id(0) * BLOCK_N, tl.program_id(2) * BLOCK_M
    steps = tl.cdiv(K, BLOCK_K)
    each = tl.cdiv(steps, SPLIT)
    first = tl.program_id(1) * each
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for step in range(first, tl.minimum(first + each, steps)):
        weight = weight_tiles.load([start_n, step * BLOCK_K])
        x = x_tiles.load([start_m, step * BLOCK_K])
        total = tl.dot(weight.to(x.dtype), x.T, total)
    n = start_n + tl.arange(0, BLOCK_N)
    m = start_m + tl.arange(0, BLOCK_M)[:, None]
    if SPLIT == 1:
        total *= tl.load(scale_ptr + n, mask=n < N, other=0.0)[:, None]
    y_ptr += tl.program_id(1).to(tl.int64) * M * N + m.to(tl.int64) * N + n[None, :]
    tl.store(y_ptr, total.T.to(y_ptr.dtype.element_ty), mask=(m < M) & (n[None, :] < N))


@triton.jit
def w8a16_sum_kernel(
    y_ptr, partial_ptr, scale_ptr, size, N, SPLIT: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """Add up the parts of y in a fixed order, which is deterministic, and scale the sum."""
    if PDL:
        gdc_wait()
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    total = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(SPLIT):
        total += tl.load(partial_ptr + part * size + offsets, mask=mask, other=0.0)
    total *= tl.load(scale_ptr + offsets % N, mask=mask, other=0.0)
    tl.store(y_ptr + offsets, total.to(y_ptr.dtype.element_ty), mask=mask)


#: Elements of y per program of ``w8a16_sum_kernel``.
_SUMMED = 512


def add_parts(y: torch.Tensor, parts: torch.Tensor, scale: torch.Tensor) -> None:
    """Write the sum of ``parts`` (SPLIT, M, N), scaled, to y (M, N)."""
    size, n = y.numel(), y.shape[1]
    # Programmatic dependent launch: the kernel starts early and waits for the parts.
    pdl = capability(y) >= 90
    launch(
        w8a16_sum_kernel, (cdiv(size, _SUMMED),), y, parts, scale, size, n,
        SPLIT=parts.shape[0], BLOCK=_SUMMED, PDL=pdl, **({"launch_pdl": True} if pdl else {}),
    )  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """Tile of ``block_m`` rows of x and ``block_n`` of weights, parts along K, and pipeline stages."""

    block_m: int
    block_n: int
    split: int
    stages: int


#: Elements of a step along K.
_BLOCK_K = 128


def plan(x: torch.Tensor, weight: torch.Tensor) -> Plan | None:
    """Plan for ``x`` (M, K) and ``weight`` (N, K); None where TMA cannot load them or there are more tiles than SMs."""
    (m, k), n = x.shape, weight.shape[0]
    if m > 1024 or x.element_size() != 2 or capability(x) < 90 or shared_memory(x) < 227 * 1024:
        return None
    if k < _BLOCK_K or not tma_serves(x, weight, x):
        return None
    programs, steps = multiprocessors(x), cdiv(k, _BLOCK_K)
    block_m = 32 if m <= 32 else 64 if m <= 64 else 128
    tiles_m = cdiv(m, block_m)
    block_n = 128 if tiles_m * cdiv(n, 128) * 5 >= programs else 64
    tiles = tiles_m * cdiv(n, block_n)
    if tiles > programs:
        return None
    split = max(1, min(programs // tiles, steps // 3, 8))
    return Plan(block_m, block_n, split, 4 if block_m == 128 else 6)


def write_product(x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, scale: torch.Tensor, chosen: Plan) -> None:
    """Write the product to contiguous ``y``."""
    (m, k), n = x.shape, weight.shape[0]
    out = torch.empty((chosen.split, m, n), dtype=torch.float32, device=x.device) if chosen.split > 1 else y
    launch(
        w8a16_split_kernel, (cdiv(n, chosen.block_n), chosen.split, cdiv(m, chosen.block_m)),
        out, tiles(x, chosen.block_m, _BLOCK_K), tiles(weight, chosen.block_n, _BLOCK_K), scale, m, n, k,
        BLOCK_M=chosen.block_m, BLOCK_N=chosen.block_n, BLOCK_K=_BLOCK_K, SPLIT=chosen.split,
        PDL=chosen.split > 1 and capability(x) >= 90, num_warps=chosen.block_n // 16, num_stages=chosen.stages,
    )  # fmt: skip
    if chosen.split > 1:
        add_parts(y, out, scale)
