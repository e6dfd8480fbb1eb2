"""Tilings of large 16-bit products on Hopper, and a cost model that chooses one."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from tilescope_kernels._shared.integers import cdiv

#: Elements of a step along K: 128 bytes.
BLOCK_K = 64


@dataclass(frozen=True)
class Tiling:
    """A tile of ``rows`` rows for each of ``groups`` warpgroups and ``wide`` columns, with ``side`` more in an accumulator of their own.

    Tiles of the last wave are cut into ``cut_rows`` x ``cut_columns`` parts. The ring of operands has ``stages``; each
    warpgroup stores through ``buffers``. ``copies``: operands whose rows do not start at memory sectors are copied first.
    """

    rows: int
    wide: int
    side: int = 0
    cut_rows: int = 1
    cut_columns: int = 1
    stages: int = 4
    buffers: int = 2
    copies: bool = False
    groups: int = 2


#: Uncut tilings come first, so that they win ties.
TILINGS = (
    Tiling(64, 256),
    Tiling(64, 128, stages=6),
    Tiling(128, 128, 64, stages=3, buffers=3),
    Tiling(64, 128, 64, buffers=3),
    Tiling(64, 128, 32, stages=5),
    Tiling(64, 256, cut_columns=2),
    Tiling(64, 256, cut_columns=4),
    Tiling(64, 128, cut_columns=2, stages=6),
    Tiling(128, 128, 64, cut_rows=2, stages=3, buffers=3),
    Tiling(64, 128, 64, buffers=1, groups=3),
    Tiling(64, 128, 128, stages=3, groups=3),
)
#: Rows and columns of operands that L2 delivers while a 128x256 tile multiplies one step along K: if all extents are multiples
#: of 128 bytes, and if they are not. Rows that do not start at sectors count as so many.
_ARRIVING_WHOLE, _ARRIVING, _ASKEW = 490, 440, 1.5
#: Time of writing a 128x256 tile, in steps. This and the rest are fitted to 1000 timings of 45 sizes on an H200 (2026-11-27).
_WRITING = 2
#: Slowdown by 32 or 64 ``side`` columns of two warpgroups, whose wgmma instructions are short.
_BESIDE = {32: 1.2, 64: 1.05}
#: Cost of copying operands: steps of the launch, and elements that are copied per step.
_COPYING, _COPIED = 4, 1_000_000


def whole_tiles(tiles: int, programs: int, chosen: Tiling) -> int:
    """Number of uncut tiles: those of full waves, or all."""
    return tiles if chosen.cut_rows * chosen.cut_columns == 1 else tiles // programs * programs


def _time(m: int, n: int, k: int, programs: int, askew: tuple[bool, bool], chosen: Tiling) -> float:
    """Estimated time, in steps of a 128x256 tile along K. Infinite where a cut last wave is empty or exceeds one wave."""
    rate = _ARRIVING if (m | n | k) % 64 else _ARRIVING_WHOLE
    of_a, of_b = (_ASKEW if each else 1.0 for each in askew)
    slowdown = _BESIDE.get(chosen.side, 1.0) if chosen.groups == 2 else 1.0

    def wave(rows: int, columns: int) -> float:
        area = rows * columns / (128 * 256)
        return cdiv(k, BLOCK_K) * max(area * slowdown, (of_a * rows + of_b * columns) / rate) + _WRITING * area

    rows, columns = chosen.groups * chosen.rows, chosen.wide + chosen.side
    tiles, cut = cdiv(m, rows) * cdiv(n, columns), chosen.cut_rows * chosen.cut_columns
    last = tiles % programs
    if cut > 1 and not 0 < last * cut <= programs:
        return float("inf")
    time = tiles // programs * wave(rows, columns)
    return time + (wave(rows // chosen.cut_rows, columns // chosen.cut_columns) if last else 0.0)


@functools.lru_cache(maxsize=4096)
def tiling(
    m: int, n: int, k: int, programs: int, askew: tuple[bool, bool] = (False, False), aligned_c: bool = True
) -> Tiling:
    """The tiling with the least estimated time. A partial last wave takes as long as a full one unless its tiles are cut.

    ``askew``: rows of a, and of b, do not start at sectors. Without ``aligned_c`` no tile is cut, because writing takes too
    long.
    """
    tilings = [chosen for chosen in TILINGS if aligned_c or chosen.cut_rows * chosen.cut_columns == 1]
    time, best = min(
        ((_time(m, n, k, programs, askew, chosen), chosen) for chosen in tilings), key=lambda each: each[0]
    )
    if any(askew):
        copied = tiling(m, n, k, programs, (False, False), aligned_c)
        elements = askew[0] * m * k + askew[1] * k * n
        if _time(m, n, k, programs, (False, False), copied) + _COPYING + elements / _COPIED < time:
            return replace(copied, copies=True)
    return best
