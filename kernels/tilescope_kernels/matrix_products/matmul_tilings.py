"""Tilings of large 16-bit products on Hopper, and a cost model that chooses one."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from tilescope_kernels._shared.integers import cdiv

#: Multiplying warpgroups, which share a tile's rows, and elements of a step along K: 128 bytes.
GROUPS, BLOCK_K = 2, 64


@dataclass(frozen=True)
class Tiling:
    """A tile of ``rows`` rows per warpgroup and ``wide`` columns, with ``side`` more in an accumulator of their own.

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
)
#: Rows and columns of operands that L2 delivers while a 128x256 tile multiplies one step along K: if all extents are multiples
#: of 128 bytes, if rows start at sectors of 32 bytes, if they do not, and if they do not and tiles leave the ring three stages.
#: The last number is the time of writing such a tile, in steps. Fitted to 126 timings of 11 sizes on an H200 (2026-11-26).
_ARRIVING_WHOLE, _ARRIVING, _ARRIVING_ASKEW, _ARRIVING_ASKEW_LATE, _WRITING = 495, 463, 284, 248, 3
#: Slowdown by ``side`` columns, whose wgmma instructions are short.
_BESIDE = {0: 1.0, 32: 1.17, 64: 1.03}
#: Cost of copying operands: steps of the launch, and elements that are copied per step.
_COPYING, _COPIED = 5, 515_000


def whole_tiles(tiles: int, programs: int, chosen: Tiling) -> int:
    """Number of uncut tiles: those of full waves, or all."""
    return tiles if chosen.cut_rows * chosen.cut_columns == 1 else tiles // programs * programs


def _time(m: int, n: int, k: int, programs: int, askew: bool, chosen: Tiling) -> float:
    """Estimated time, in steps of a 128x256 tile along K. Infinite where a cut last wave is empty or exceeds one wave."""

    straight = _ARRIVING if (m | n | k) % 64 else _ARRIVING_WHOLE

    def wave(rows: int, columns: int) -> float:
        area = rows * columns / (128 * 256)
        rate = (_ARRIVING_ASKEW_LATE if rows > 128 else _ARRIVING_ASKEW) if askew else straight
        step = max(area * _BESIDE[chosen.side], (rows + columns) / rate)
        return cdiv(k, BLOCK_K) * step + _WRITING * area

    rows, columns = GROUPS * chosen.rows, chosen.wide + chosen.side
    tiles, cut = cdiv(m, rows) * cdiv(n, columns), chosen.cut_rows * chosen.cut_columns
    last = tiles % programs
    if cut > 1 and not 0 < last * cut <= programs:
        return float("inf")
    time = tiles // programs * wave(rows, columns)
    return time + (wave(rows // chosen.cut_rows, columns // chosen.cut_columns) if last else 0.0)


@functools.lru_cache(maxsize=4096)
def tiling(m: int, n: int, k: int, programs: int, askew: int = 0, aligned_c: bool = True) -> Tiling:
    """The tiling with the least estimated time. A partial last wave takes as long as a full one unless its tiles are cut.

    ``askew`` is the number of elements of operands whose rows do not start at sectors. Without ``aligned_c`` no tile is
    cut, because writing takes too long.
    """
    tilings = [chosen for chosen in TILINGS if aligned_c or chosen.cut_rows * chosen.cut_columns == 1]
    time, best = min(
        ((_time(m, n, k, programs, askew > 0, chosen), chosen) for chosen in tilings), key=lambda each: each[0]
    )
    if askew:
        copied = tiling(m, n, k, programs, 0, aligned_c)
        if _time(m, n, k, programs, False, copied) + _COPYING + askew / _COPIED < time:
            return replace(copied, copies=True)
    return best
