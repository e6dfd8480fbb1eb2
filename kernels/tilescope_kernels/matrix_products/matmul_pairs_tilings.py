"""Tilings of products on Hopper with tiles of pairs of SMs, which share what they load, and where they are quicker than others.

A tile's width, any multiple of 16, lets tiles fill whole waves. A matrix that is contiguous along K is loaded with any width, another
one in whole boxes of 64, of whose last a part may not be used. Tiles lie along the rows of the product or of its transpose.

The time of a tiling is in microseconds. Its constants are fitted to kernel spans of 22 products, m, n and k from 512 to 10000, on an
H200 (bf16, cold L2). For most of those products the tiling with the least estimate is the fastest measured or at most 3 % slower.

Clusters of 2 x 2 SMs, in which each loads half of both operands, are no faster: at most 120 of 132 SMs are in such clusters. The start
separates these kernels from cuBLAS: Triton starts warps late, the programs of a pair meet, and then the first operands arrive.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from tilescope_kernels._shared.launching import cdiv
from tilescope_kernels.matrix_products import matmul_hopper_tilings as alone
from tilescope_kernels.matrix_products.matmul_tilings import BLOCK_K, UNIT, Product, Tiling, piece, quickest

#: Microseconds: of a launch until the first operands arrive; of a step of a 128x256 tile, and of any step besides; so much slower with
#: 128 rows for each warpgroup; of loading a row or column of a step; and of writing a tile.
_START, _MULTIPLYING, _STEP, _TALL, _ROW, _WRITING = 3.8, 0.592, 0.06, 1.03, 1.56e-3, 1.5
#: A step takes as long as the slower of multiplying and loading, and longer where they are close.
_POWER = 8
#: Microseconds of tiles of one SM: their start, and what they estimate as a step. Pairs are chosen if tiles of one SM take so much longer
#: by the estimates, or if rows do not start at memory sectors.
_START_ALONE, _STEP_ALONE, _GAIN, _GAIN_ASKEW = 4.3, 0.635, 1.05, 0.97
#: The shortest K of the fit.
_LEAST_K = 512
#: Bytes of shared memory of the ring and of buffers: an SM's, less mbarriers and what Triton adds.
_ROOM = 225 * 1024


@dataclass(frozen=True)
class Pairs(Tiling):
    """Tiles of pairs of SMs, ``stacked`` one above the other or beside each other, of the product or if ``turned`` of its transpose.

    Each warpgroup stores through ``buffers``. ``boxed``: what is loaded along a tile's width is loaded in boxes of
    64 columns, the last of them in part for nothing.
    """

    buffers: int = 2
    stacked: bool = True
    turned: bool = False
    boxed: bool = False

    @property
    def piece(self) -> int:
        return piece(self.wide)

    @property
    def loaded(self) -> int:
        """Columns that are loaded for a tile."""
        return cdiv(self.wide, 64) * 64 if self.boxed else self.wide

    @property
    def extents(self) -> tuple[int, int]:
        """Rows and columns of both tiles of a pair."""
        return self._of_pair(self.wide)

    def _of_pair(self, columns: int) -> tuple[int, int]:
        return (2 * self.height, columns) if self.stacked else (self.height, 2 * columns)

    def ordered(self, along_k: tuple[bool, bool]) -> Pairs:
        """The tiling for these operands, with a ring that fits. ``along_k`` says which of a and b are contiguous along K."""
        boxed = replace(self, boxed=self.wide % 64 != 0 and not along_k[0 if self.turned else 1])
        stages, buffers = _ring(self.rows, boxed.loaded, self.wide)
        return replace(boxed, stages=stages, buffers=buffers)

    def serves(self, along_k: tuple[bool, bool]) -> bool:
        """Whether little of what is loaded for such operands is not used.

        With column-major a and row-major b, as gradients of weights have them, tiles of 160 columns need three boxes and are faster;
        tiles of 208 columns are not.
        """
        return 5 * self.ordered(along_k).loaded <= 6 * self.wide

    def time(self, product: Product) -> float:
        """Estimated microseconds."""
        if self.turned:
            product = product.turned
        (down, across), area = self.extents, self.height * self.wide / UNIT
        loaded_m, loaded_n = self._of_pair(self.loaded)
        # A pair loads what it shares once.
        multiplying, loading = (
            area * (_TALL if self.rows == 128 else 1.0) * _MULTIPLYING + _STEP,
            product.loads(loaded_m / 2, loaded_n / 2) * _ROW,
        )
        step = (multiplying**_POWER + loading**_POWER) ** (1 / _POWER)
        waves = cdiv(cdiv(product.m, down) * cdiv(product.n, across), product.programs // 2)
        return _START + waves * (product.steps * step + _WRITING * area)


def _ring(rows: int, loaded: int, wide: int) -> tuple[int, int]:
    """Stages, as many as fit and eight at most, and buffers for each warpgroup: two if four stages fit beside them, else one."""
    step, buffer = 2 * BLOCK_K * (2 * rows + loaded), 128 * piece(wide)
    two, one = (min(8, (_ROOM - 2 * buffers * buffer) // step) for buffers in (2, 1))
    return (two, 2) if two >= 4 else (one, 1)


def _pairs(rows: int, wide: int) -> Pairs:
    stages, buffers = _ring(rows, wide, wide)
    return Pairs(rows, wide, stages, buffers=buffers)


#: Others have the least estimate at no size of the models.
TILES = (_pairs(128, 160), _pairs(64, 208))
PAIRS = tuple(
    replace(each, stacked=stacked, turned=turned)
    for each in TILES
    for stacked in (True, False)
    for turned in (False, True)
)


@functools.lru_cache(maxsize=4096)
def tiling(product: Product, along_k: tuple[bool, bool]) -> Pairs | None:
    """The tiling for a result with many tiles. None where tiles of one SM may be as quick."""
    if product.k < _LEAST_K:
        return None
    served = [each.ordered(along_k) for each in PAIRS if each.serves(along_k)]
    if not served:
        return None
    time, best = quickest(served, lambda each: each.time(product))
    others, _ = quickest(alone.TILINGS, lambda each: each.time(product))
    if any(product.askew):
        others = min(others, alone.of_copies(product)[0])
    gain = _GAIN_ASKEW if any(product.askew) else _GAIN
    return best if gain * time < _START_ALONE + _STEP_ALONE * others else None
