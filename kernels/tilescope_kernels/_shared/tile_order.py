"""The programs of a matrix product, and the order in which they walk its tiles."""

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
