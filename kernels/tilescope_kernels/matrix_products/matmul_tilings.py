"""Tilings of large 16-bit products on Hopper, and a cost model that chooses one."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilescope_kernels._shared.integers import cdiv

#: Elements of a step along K: 128 bytes.
BLOCK_K = 64


@dataclass(frozen=True)
class Tiling:
    """A tile of ``rows`` rows for each of ``groups`` warpgroups and ``wide`` columns, with ``side`` more in an accumulator of their own.

    Tiles of the last wave are cut into ``cut_rows`` x ``cut_columns`` parts. The ring of operands has ``stages``; each
    warpgroup stores through ``buffers``. ``copies``: operands whose rows do not start at memory sectors are copied first.
    ``pairs``: two SMs share what they load of tiles that are "stacked" or "beside" each other. ``splits``: parts along K
    of all their tiles, or with ``tail`` of those of the last wave. ``cluster``: parts along K that the programs of a cluster
    multiply and add up through shared memory.
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
    pairs: str = ""
    splits: int = 1
    tail: bool = False
    cluster: int = 1


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
#: Tilings of pairs. They are not cut.
_PAIRED = (
    Tiling(64, 256),
    Tiling(128, 128),
    Tiling(64, 128, stages=6),
    Tiling(64, 128, stages=5, buffers=1, groups=3),
    Tiling(64, 128, 64, buffers=1, groups=3),
)
PAIRS = tuple(replace(each, pairs=how) for each in _PAIRED for how in ("stacked", "beside"))
#: Tilings of pairs whose last wave is split along K.
TAILS = tuple(replace(each, splits=parts, tail=True) for each in PAIRS for parts in range(2, 7))
#: Tilings of clusters, without buffers: results are written from registers.
_CLUSTERED = (
    Tiling(64, 128, stages=6, buffers=0),
    Tiling(64, 64, stages=8, buffers=0),
    Tiling(64, 128, stages=8, buffers=0, groups=1),
    Tiling(64, 64, stages=10, buffers=0, groups=1),
)
CLUSTERS = tuple(replace(each, cluster=parts) for parts in (2, 4) for each in _CLUSTERED)
#: Rows and columns of operands that L2 delivers while a 128x256 tile multiplies one step along K: if all extents are multiples
#: of 128 bytes, and if they are not. Rows that do not start at sectors count as so many.
_ARRIVING_WHOLE, _ARRIVING, _ASKEW = 490, 440, 1.5
#: Time of writing a 128x256 tile, in steps. This and the rest are fitted to 1000 timings of 45 sizes on an H200 (2026-11-27).
_WRITING = 2
#: Slowdown by 32 or 64 ``side`` columns of two warpgroups, whose wgmma instructions are short.
_BESIDE = {32: 1.2, 64: 1.05}
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
#: Of 132 SMs so many clusters of so many programs run at once (H200): they lie within a group of SMs, of which some remain.
_AT_ONCE = {2: 66, 4: 30}
#: Clusters in microseconds: a launch and filling the ring, a row or column of a step if few SMs load, so much more if all do, and
#: exchanging the sums of a 128x128 tile. Fitted to 17 timings, which they miss by 4.5 % (root mean square), at most 10.
_START, _ROW, _ROW_MORE, _EXCHANGING = 1.7, 0.83e-3, 1.07e-3, 3.3
#: Small tiles likewise, their rows if all extents are multiples of 128 bytes and if not. Fitted to 11 timings: 2.7 %, at most 5.
_START_SMALL, _ROW_SMALL, _ROW_WHOLE, _ROW_RAGGED = 2.8, 0.78e-3, 0.21e-3, 0.775e-3
#: Bytes that HBM delivers per microsecond; by how much clusters must be quicker, for the estimates miss by so much; and how many steps
#: the shortest part has that was timed, of 1000x1000x4000. All timings are of an H200 (2026-11-27, torch 2.11, triton 3.6, spans of
#: kernels, cold L2, rotated inputs).
_BYTES, _GAIN_CLUSTERS, _LEAST_STEPS = 3.85e6, 1.08, 31
#: Cost of copying operands: steps of the launch, and elements that are copied per step.
_COPYING, _COPIED = 4, 1_000_000


def whole_tiles(tiles: int, programs: int, chosen: Tiling) -> int:
    """Number of uncut tiles: those of full waves, or all."""
    return tiles if chosen.cut_rows * chosen.cut_columns == 1 else tiles // programs * programs


def _time(
    m: int, n: int, k: int, programs: int, askew: tuple[bool, bool], chosen: Tiling, longer: float = 1.0
) -> float:
    """Estimated time, in steps of a 128x256 tile along K. Infinite where a cut or split last wave is empty, or a cut one exceeds a wave.

    Three warpgroups write ``longer`` than two.
    """
    rate = _ARRIVING if (m | n | k) % 64 else _ARRIVING_WHOLE
    of_a, of_b = (_ASKEW if each else 1.0 for each in askew)
    stacked, beside = (1 + (chosen.pairs == how) for how in ("stacked", "beside"))
    rows, columns = chosen.groups * chosen.rows, chosen.wide + chosen.side
    # Parts are written in fp32.
    splits = 1 if chosen.tail else chosen.splits
    writing = _WRITING * (longer if chosen.groups == 3 else 1.0) * (2 if splits > 1 else 1)
    steps = cdiv(cdiv(k, BLOCK_K), splits)
    slowdown = _BESIDE.get(chosen.side, 1.0) if chosen.groups == 2 else 1.0
    if chosen.pairs and rows == columns == 128:
        slowdown = _NARROW

    def wave(rows: int, columns: int) -> float:
        area = rows * columns / (128 * 256)
        # A pair loads what it shares once.
        loads = of_a * rows / beside + of_b * columns / stacked
        return steps * max(area * slowdown, loads / rate) + writing * area

    tiles = cdiv(m, stacked * rows) * cdiv(n, beside * columns) * splits
    programs, cut = programs // (stacked * beside), chosen.cut_rows * chosen.cut_columns
    last = tiles % programs
    if cut > 1 and not 0 < last * cut <= programs:
        return float("inf")
    if chosen.tail:
        if tiles < programs or not last:
            return float("inf")
        waves = cdiv(last * chosen.splits, programs) / chosen.splits
        return (tiles // programs + waves) * wave(rows, columns) + writing * rows * columns / (128 * 256) + _ADDING
    time = tiles // programs * wave(rows, columns) + (_ADDING if splits > 1 else 0)
    return time + (wave(rows // chosen.cut_rows, columns // chosen.cut_columns) if last else 0.0)


@functools.lru_cache(maxsize=4096)
def tiling(
    m: int,
    n: int,
    k: int,
    programs: int,
    askew: tuple[bool, bool] = (False, False),
    aligned_c: bool = True,
    pairs: bool = False,
) -> Tiling:
    """The tiling with the least estimated time. A partial last wave takes as long as a full one unless its tiles are cut.

    ``askew``: rows of a, and of b, do not start at sectors. Without ``aligned_c`` no tile is cut, because writing takes too
    long, and there are no pairs. ``pairs``: pairs of SMs may share what they load.
    """
    tilings = [chosen for chosen in TILINGS if aligned_c or chosen.cut_rows * chosen.cut_columns == 1]

    def quickest(
        tilings: Sequence[Tiling], askew: tuple[bool, bool] = askew, longer: float = 1.0
    ) -> tuple[float, Tiling]:
        times = ((_time(m, n, k, programs, askew, chosen, longer), chosen) for chosen in tilings)
        return min(times, key=lambda each: each[0])

    time, best = quickest(tilings)
    if not any(askew):
        return best
    copied_time, copied = quickest(tilings, (False, False))
    elements = askew[0] * m * k + askew[1] * k * n
    copied_time += _COPYING + elements / _COPIED
    if pairs and aligned_c and k >= _LEAST_K:
        paired_time, paired = quickest(PAIRS, longer=_LONGER)
        split_time, split = quickest(TAILS, longer=_LONGER)
        alone = min(copied_time, quickest(tilings, longer=_LONGER)[0])
        if _GAIN_TAIL * split_time < min(paired_time, alone):
            return split
        if _GAIN * paired_time < alone:
            return paired
    return replace(copied, copies=True) if copied_time < time else best


@functools.lru_cache(maxsize=4096)
def split_pairs(m: int, n: int, k: int, programs: int, askew: tuple[bool, bool]) -> Tiling | None:
    """The tiling of pairs for a result with few tiles, perhaps in parts along K. None where small tiles may be as quick.

    Those are the ones of ``split_k``, one per SM of 64x64 elements or 64x128, which load more the smaller they are.
    """
    tiles = cdiv(m, 64) * cdiv(n, 64)
    # Results with fewer tiles are split there too. Narrow ones were not measured.
    if not (any(askew) or (m | n | k) % 64) or programs >= 4 * tiles or min(m, n) < 256:
        return None
    of_a, of_b = (_ASKEW if each else 1.0 for each in askew)
    alone = cdiv(k, BLOCK_K) * (of_a * 64 + of_b * (64 if tiles <= programs else 128)) / _ARRIVING
    tilings = (replace(chosen, splits=parts) for chosen in PAIRS for parts in range(1, _PARTS + 1))
    time, best = min(
        ((_time(m, n, k, programs, askew, chosen), chosen) for chosen in tilings), key=lambda each: each[0]
    )
    return best if _GAIN_SPLIT * time + _LESS_SPLIT < alone else None


def cluster_time(m: int, n: int, k: int, programs: int, askew: tuple[bool, bool], chosen: Tiling) -> float:
    """Estimated microseconds of a tiling of clusters. Infinite where their parts are shorter than any that was measured."""
    rows, columns, steps = chosen.groups * chosen.rows, chosen.wide, cdiv(k, BLOCK_K)
    if steps // chosen.cluster < _LEAST_STEPS:
        return float("inf")
    of_a, of_b = (_ASKEW if each else 1.0 for each in askew)
    loads, exchanging = of_a * rows + of_b * columns, _EXCHANGING * rows * columns / (128 * 128)

    def wave(clusters: int) -> float:
        row = _ROW + _ROW_MORE * clusters * chosen.cluster / programs
        return cdiv(steps, chosen.cluster) * loads * row + exchanging

    tiles, at_once = cdiv(m, rows) * cdiv(n, columns), programs * _AT_ONCE[chosen.cluster] // 132
    last = tiles % at_once
    time = tiles // at_once * wave(at_once) + (wave(last) if last else 0.0)
    return _START + max(time, 2 * k * (m + n) / _BYTES + exchanging)


def small_time(m: int, n: int, k: int, programs: int, askew: tuple[bool, bool]) -> float:
    """Estimated microseconds of the tiles of ``split_k`` that are not split."""
    columns = 64 if m <= 64 or cdiv(m, 64) * cdiv(n, 64) <= programs else 128
    of_a, of_b = (_ASKEW if each else 1.0 for each in askew)
    tiles = cdiv(m, 64) * cdiv(n, columns)
    row = _ROW_SMALL + (_ROW_RAGGED if (m | n | k) % 64 else _ROW_WHOLE) * min(1, tiles / programs)
    time = cdiv(tiles, programs) * cdiv(k, BLOCK_K) * (of_a * 64 + of_b * columns) * row
    return _START_SMALL + max(time, 2 * k * (m + n) / _BYTES)


@functools.lru_cache(maxsize=4096)
def clusters(m: int, n: int, k: int, programs: int, askew: tuple[bool, bool]) -> Tiling | None:
    """The tiling of clusters for a result with few tiles and a long K. None where the tiles of ``split_k`` may be as quick.

    Where those are split, clusters were not: 256x256x16384 took 13.1 us in clusters of up to 4 programs (12.3), 128x1024x8192 11.2
    (9.6), 64x2048x8192 12.6 (12.7). Nor where pairs are split, with the sums added up as they are now: 256x1000x10000 21.8 (18.2).
    """
    if programs >= 4 * cdiv(m, 64) * cdiv(n, 64):
        return None
    times = ((cluster_time(m, n, k, programs, askew, each), each) for each in CLUSTERS)
    time, best = min(times, key=lambda each: each[0])
    return best if _GAIN_CLUSTERS * time < small_time(m, n, k, programs, askew) else None
