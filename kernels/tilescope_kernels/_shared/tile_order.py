"""The order in which programs walk the tiles of a matrix product."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_origin(tile, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """First row and column of a tile. Tiles are walked in groups of GROUP_M rows of tiles, so that concurrent ones share operands in L2."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    first_m = tile // (GROUP_M * tiles_n) * GROUP_M
    group_m = min(tiles_m - first_m, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    return (first_m + within % group_m) * BLOCK_M, (within // group_m) * BLOCK_N
