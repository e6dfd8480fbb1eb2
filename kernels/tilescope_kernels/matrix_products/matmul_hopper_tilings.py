"""Tilings of large products on Hopper with tiles of one SM each, those of the last wave perhaps cut, and the choice of one."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tilescope_kernels._shared.launching import cdiv
from tilescope_kernels.matrix_products.matmul_tilings import UNIT, WRITING, Product, Tiling, quickest

#: Slowdown by 32 or 64 ``side`` columns of two warpgroups, whose wgmma instructions are short.
_BESIDE = {32: 1.2, 64: 1.05}
#: Cost of copying operands: steps of the launch, and elements that are copied per step.
_COPYING, _COPIED = 4, 1_000_000


@dataclass(frozen=True)
class Alone(Tiling):
    """Tiles of one SM each, with ``side`` more columns in an accumulator of their own.

    Tiles of the last wave are cut into ``cut_rows`` x ``cut_columns`` parts. Each warpgroup stores through ``buffers``.
    ``copies``: operands whose rows do not start at memory sectors are copied first.
    """

    side: int = 0
    buffers: int = 2
    cut_rows: int = 1
    cut_columns: int = 1
    copies: bool = False

    @property
    def width(self) -> int:
        return self.wide + self.side

    @property
    def cut(self) -> int:
        """Parts of a tile of the last wave."""
        return self.cut_rows * self.cut_columns

    def time(self, product: Product) -> float:
        """Estimated steps. Infinite where a cut last wave is empty or exceeds a wave.

        A partial last wave takes as long as a full one unless its tiles are cut.
        """
        slowdown = _BESIDE.get(self.side, 1.0) if self.groups == 2 else 1.0

        def wave(rows: int, columns: int) -> float:
            area = rows * columns / UNIT
            return product.steps * product.step(area * slowdown, rows, columns) + WRITING * area

        full, last = divmod(cdiv(product.m, self.height) * cdiv(product.n, self.width), product.programs)
        if self.cut > 1 and not 0 < last * self.cut <= product.programs:
            return float("inf")
        partial = wave(self.height // self.cut_rows, self.width // self.cut_columns) if last else 0.0
        return full * wave(self.height, self.width) + partial


#: Uncut tilings come first, so that they win ties.
TILINGS = (
    Alone(64, 256),
    Alone(64, 128, stages=6),
    Alone(128, 128, side=64, stages=3, buffers=3),
    Alone(64, 128, side=64, buffers=3),
    Alone(64, 128, side=32, stages=5),
    Alone(64, 256, cut_columns=2),
    Alone(64, 256, cut_columns=4),
    Alone(64, 128, cut_columns=2, stages=6),
    Alone(128, 128, side=64, cut_rows=2, stages=3, buffers=3),
    Alone(64, 128, side=64, buffers=1, groups=3),
    Alone(64, 128, side=128, stages=3, groups=3),
)


def of_copies(product: Product, tilings: Iterable[Alone] = TILINGS) -> tuple[float, Alone]:
    """The least estimated time with copies of operands that are askew, copying included, and the tiling."""
    time, best = quickest(tilings, lambda each: each.time(product._replace(askew=(False, False))))
    elements = product.askew[0] * product.m * product.k + product.askew[1] * product.k * product.n
    return time + (_COPYING + elements / _COPIED), replace(best, copies=True)


@functools.lru_cache(maxsize=4096)
def tiling(product: Product, aligned_c: bool = True) -> Alone:
    """The tiling with the least estimated time. Without ``aligned_c`` no tile is cut, because writing takes too long."""
    tilings = [each for each in TILINGS if aligned_c or each.cut == 1]
    time, best = quickest(tilings, lambda each: each.time(product))
    if not any(product.askew):
        return best
    copied_time, copied = of_copies(product, tilings)
    return copied if copied_time < time else best
