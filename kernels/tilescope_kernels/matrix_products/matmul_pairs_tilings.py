"""Tilings of products on Hopper with tiles of pairs of SMs, which share what they load, and where they are quicker than others.

Clusters of 2 x 2 SMs, in which each loads half of both operands, were tried (H200, 2026-11-28, torch 2.11, triton 3.6, spans of
kernels, cold L2, rotated inputs). Fitted to 1000x1000xK, K from 1000 to 10000, a step takes 0.28 us with tiles of 128x128, 0.42 of
192x128, 0.57 of 128x256 and 0.64 of 192x192: what tensor cores do at 1.81 GHz (pairs of 128x128 take 0.31 to 0.32). But a launch
takes 6.5 to 8 us besides its steps, as with pairs; from 10000x1000x1000, a further wave 1.7 to 3.6; and at most 120 of 132 SMs are
in such clusters. No product of 29 gained more than 1 % (best tiling with 2 x 2 SMs, as is, cuBLAS): 1504x1504x1504 17.6 us (17.8,
12.4), 10000x1000x1000 41.4 (41.8, 33.0), 1800x1800x1800 28.8 (27.5, 23.5), 1000x1000x1000 11.0 (10.1, 8.1), 2048x1000x2048 21.9
(17.0, 14.1), 5000x1000x5000 85.1 (81.1, 67.9). Nor did pairs gain by descriptors fetched ahead and mbarriers that one thread
initializes: at most 2 % of ten products. Tiles of 192x256 do not compile: 512 threads leave 128 registers for each before
registers are shared out, which ptxas refuses.

What cuBLAS has instead, by the names of its kernels, are tiles of such a width, any multiple of 8, that they fill whole waves:
96x192 for 1504x1504x1504 (128 tiles for 132 SMs), 192x144 for 1800x1800x1800 (130), 152x256 for 5000x1000x5000 (132), 304x128 for
10000x1000x1000 (264). Widths here are powers of two or two of them side by side, and only columns have them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from tilescope_kernels._shared.integers import cdiv
from tilescope_kernels.matrix_products import matmul_hopper_tilings as alone
from tilescope_kernels.matrix_products.matmul_tilings import ARRIVING, UNIT, WRITING, Product, Tiling, quickest

#: Slowdown of pairs of 128x128 tiles, and so much longer three warpgroups write than two, which is compared with pairs only.
#: Where rows do not start at sectors, pairs are chosen if the model says that others take so much longer, for so long a K.
#: Of 28 such products on an H200 (2026-11-27) the model chose pairs for 20, which gained 9 to 30 %. It passes over gains of up
#: to 4 % (1000x5000x5000, 6000x1000x3000) to avoid losses of 2 or 3 (5000x5000x1000, 1000x8000x1000). Where all rows start at
#: sectors, pairs lost up to 9 % of large products whose extents are multiples of 64, and gained 0 to 4 % of four others.
_NARROW, _LONGER, _GAIN, _LEAST_K = 1.1, 1.5, 1.035, 512
#: By so much a split last wave must be quicker than the best tiling without. One such product was measured, 5000x1000x5000: 80 us
#: instead of 87, 8 % where the model says 11. Where rows start at sectors it was slower: 3000x2000x6000 118 and 97.
_GAIN_TAIL = 1.1
#: Steps of adding up parts of a split product, the most parts, and by which factor and by how many steps they must be quicker than
#: small tiles of one SM each. Fitted to five products with few tiles and ragged rows on an H200 (2026-11-27): of 1000x1000x10000
#: and 256x1000x10000 the model chose tilings with 42 and 22 us instead of 79 and 36, of 1000x1000x4000 27 instead of 35, of
#: 1000x1000x1000 none; of 1000x1000x10000 whose rows start at sectors, but within lines of 128 bytes, 37 instead of 50. Where all
#: extents are multiples of 64 small tiles take two thirds of what is estimated: 512x512x8192 17 us, 256x4096x4096 15, 768x768x3072 11.
_ADDING, _PARTS, _GAIN_SPLIT, _LESS_SPLIT = 8, 6, 1.1, 9


@dataclass(frozen=True)
class Pairs(Tiling):
    """Tiles of pairs of SMs, ``stacked`` one above the other or beside each other, with ``side`` more columns in an accumulator.

    Each warpgroup stores through ``buffers``. ``splits``: parts along K of all tiles, or with ``tail`` of those of the last wave.
    """

    side: int = 0
    buffers: int = 2
    stacked: bool = True
    splits: int = 1
    tail: bool = False

    @property
    def width(self) -> int:
        return self.wide + self.side

    @property
    def extents(self) -> tuple[int, int]:
        """Rows and columns of both tiles of a pair."""
        return (2 * self.height, self.width) if self.stacked else (self.height, 2 * self.width)

    def time(self, product: Product, longer: float = 1.0) -> float:
        """Estimated steps. Infinite where there is no last wave to split. Three warpgroups write ``longer`` than two."""
        (down, across), area = self.extents, self.height * self.width / UNIT
        slowdown = _NARROW if self.height == self.width == 128 else 1.0
        # A pair loads what it shares once.
        step = product.step(area * slowdown, down / 2, across / 2)
        writing = WRITING * (longer if self.groups == 3 else 1.0) * area
        tiles, pairs = cdiv(product.m, down) * cdiv(product.n, across), product.programs // 2
        if self.tail:
            full, last = divmod(tiles, pairs)
            waves = full + cdiv(last * self.splits, pairs) / self.splits
            time = waves * (product.steps * step + writing) + writing + _ADDING
            return time if full and last else float("inf")
        # Parts are written in fp32.
        is_split = self.splits > 1
        wave = cdiv(product.steps, self.splits) * step + writing * (2 if is_split else 1)
        full, last = divmod(tiles * self.splits, pairs)
        return full * wave + (_ADDING if is_split else 0) + (wave if last else 0.0)


#: Side columns are for three warpgroups: of two they would slow down the multiplication, as of tiles of one SM.
_TILES = (
    Pairs(64, 256),
    Pairs(128, 128),
    Pairs(64, 128, stages=6),
    Pairs(64, 128, stages=5, buffers=1, groups=3),
    Pairs(64, 128, side=64, buffers=1, groups=3),
)
PAIRS = tuple(replace(each, stacked=stacked) for each in _TILES for stacked in (True, False))
#: Tilings whose last wave is split along K.
TAILS = tuple(replace(each, splits=parts, tail=True) for each in PAIRS for parts in range(2, 7))


@functools.lru_cache(maxsize=4096)
def many_tiles(product: Product) -> Pairs | None:
    """The tiling for a result with many tiles, perhaps with a last wave in parts. None where tiles of one SM may be as quick."""
    if not any(product.askew) or product.k < _LEAST_K:
        return None
    time, best = quickest(PAIRS, lambda each: each.time(product, _LONGER))
    split_time, split = quickest(TAILS, lambda each: each.time(product, _LONGER))
    others, _ = quickest(alone.TILINGS, lambda each: each.time(product, _LONGER))
    others = min(others, alone.of_copies(product)[0])
    if _GAIN_TAIL * split_time < min(time, others):
        return split
    return best if _GAIN * time < others else None


@functools.lru_cache(maxsize=4096)
def few_tiles(product: Product) -> Pairs | None:
    """The tiling for a result with few tiles, perhaps in parts along K. None where small tiles may be as quick.

    Those are the ones of ``split_k``, one per SM of 64x64 elements or 64x128, which load more the smaller they are.
    """
    tiles = cdiv(product.m, 64) * cdiv(product.n, 64)
    # Results with fewer tiles are split there too. Narrow ones were not measured.
    is_slow = product.is_ragged or any(product.askew)
    if not is_slow or product.programs >= 4 * tiles or min(product.m, product.n) < 256:
        return None
    small = product.steps * product.loads(64, 64 if tiles <= product.programs else 128) / ARRIVING
    tilings = (replace(each, splits=parts) for each in PAIRS for parts in range(1, _PARTS + 1))
    time, best = quickest(tilings, lambda each: each.time(product))
    return best if _GAIN_SPLIT * time + _LESS_SPLIT < small else None
