"""Tilings of products on Hopper whose tiles a cluster shares along K, and where they are quicker than small tiles."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from tilescope_kernels._shared.integers import cdiv
from tilescope_kernels.matrix_products.matmul_tilings import Product, Tiling, quickest

#: Of 132 SMs so many clusters of so many programs run at once (H200): they lie within a group of SMs, of which some remain.
_AT_ONCE = {2: 66, 4: 30}
#: Clusters in microseconds: a launch and filling the ring, a row or column of a step if few SMs load, so much more if all do, and
#: exchanging the sums of a 128x128 tile.
_START, _ROW, _ROW_MORE, _EXCHANGING = 1.6, 0.83e-3, 1.07e-3, 3.3
#: Small tiles likewise, their rows if all extents are multiples of 128 bytes and if not.
_START_SMALL, _ROW_SMALL, _ROW_WHOLE, _ROW_RAGGED = 2.8, 0.78e-3, 0.21e-3, 0.775e-3
#: Bytes that HBM delivers per microsecond; by how much clusters must be faster, because the estimates miss by so much; and the steps of
#: the shortest part that the fit covers. All constants are fitted to kernel spans on an H200.
_BYTES, _GAIN, _LEAST_STEPS = 3.85e6, 1.08, 31


@dataclass(frozen=True)
class Clusters(Tiling):
    """Tiles of clusters of ``parts`` programs, which multiply a part along K each and add up through shared memory."""

    parts: int = 2

    def time(self, product: Product) -> float:
        """Estimated microseconds. Infinite where parts are shorter than any that was measured."""
        if product.steps // self.parts < _LEAST_STEPS:
            return float("inf")
        loads, exchanging = product.loads(self.height, self.wide), _EXCHANGING * self.height * self.wide / (128 * 128)

        def wave(clusters: int) -> float:
            row = _ROW + _ROW_MORE * clusters * self.parts / product.programs
            return cdiv(product.steps, self.parts) * loads * row + exchanging

        at_once = product.programs * _AT_ONCE[self.parts] // 132
        full, last = divmod(cdiv(product.m, self.height) * cdiv(product.n, self.wide), at_once)
        time = full * wave(at_once) + (wave(last) if last else 0.0)
        return _START + max(time, _reading(product) + exchanging)


_TILES = (
    Clusters(64, 128, stages=6),
    Clusters(64, 64, stages=8),
    Clusters(64, 128, stages=8, groups=1),
    Clusters(64, 64, stages=10, groups=1),
)
CLUSTERS = tuple(replace(each, parts=parts) for parts in (2, 4) for each in _TILES)


def _reading(product: Product) -> float:
    """Microseconds in which HBM delivers the operands."""
    return 2 * product.k * (product.m + product.n) / _BYTES


def small_time(product: Product) -> float:
    """Estimated microseconds of the tiles of ``split_k`` that are not split."""
    columns = 64 if product.m <= 64 or cdiv(product.m, 64) * cdiv(product.n, 64) <= product.programs else 128
    tiles = cdiv(product.m, 64) * cdiv(product.n, columns)
    row = _ROW_SMALL + (_ROW_RAGGED if product.is_ragged else _ROW_WHOLE) * min(1, tiles / product.programs)
    time = cdiv(tiles, product.programs) * product.steps * product.loads(64, columns) * row
    return _START_SMALL + max(time, _reading(product))


@functools.lru_cache(maxsize=4096)
def tiling(product: Product) -> Clusters | None:
    """The tiling for a result with few tiles and a long K. None where the tiles of ``split_k`` may be as quick.

    Clusters are slower where small tiles are split into many parts, and where pairs of SMs are split.
    """
    if product.programs >= 4 * cdiv(product.m, 64) * cdiv(product.n, 64):
        return None
    time, best = quickest(CLUSTERS, lambda each: each.time(product))
    return best if _GAIN * time < small_time(product) else None
