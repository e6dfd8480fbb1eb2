"""The programs of a matrix product, the order in which they walk its tiles, and scales of its operands in the epilogue."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.launching import cdiv, multiprocessors


@triton.jit
def tile_origin(tile, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """First row and column of a tile. Tiles are walked in groups of GROUP_M rows of tiles, so that concurrent ones share operands in L2."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    first_m = tile // (GROUP_M * tiles_n) * GROUP_M
    group_m = min(tiles_m - first_m, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    return (first_m + within % group_m) * BLOCK_M, (within // group_m) * BLOCK_N


def programs(m: int, n: int, config: Mapping[str, int], tensor: torch.Tensor) -> tuple[int]:
    """The grid over an (m, n) result: a program a tile, or with ``TMA`` at most one an SM, which takes several tiles."""
    tiles = cdiv(m, config["BLOCK_M"]) * cdiv(n, config["BLOCK_N"])
    return (min(tiles, multiprocessors(tensor)) if config["TMA"] else tiles,)


@triton.jit
def _scaled(total, scale_a_ptr, scale_b_ptr, start_m, start_n, M, N, SCALES: tl.constexpr):
    """Scale ``total``: by a scale per operand (``SCALES`` 1), by scales per row and column (2), or not (0)."""
    if SCALES == 1:
        return total.to(tl.float32) * (tl.load(scale_a_ptr) * tl.load(scale_b_ptr))
    elif SCALES == 2:
        m = start_m + tl.arange(0, total.shape[0])
        n = start_n + tl.arange(0, total.shape[1])
        scale_a = tl.load(scale_a_ptr + m, mask=m < M, other=0.0)
        scale_b = tl.load(scale_b_ptr + n, mask=n < N, other=0.0)
        return total.to(tl.float32) * scale_a[:, None] * scale_b[None, :]
    else:
        return total


def kind(scales: tuple[torch.Tensor, torch.Tensor] | tuple[None, None]) -> int:
    """``SCALES`` of the kernels: 0 without scales, 1 per operand, 2 per row and column."""
    return 0 if scales[0] is None else 2 if scales[0].dim() else 1
