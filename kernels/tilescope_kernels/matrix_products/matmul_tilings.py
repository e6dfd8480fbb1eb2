"""Tilings of large 16-bit products on Hopper, and the choice of one by estimates of its time.

Tiles of one SM each (``Alone``), those of the last wave perhaps cut, are estimated in steps of a 128x256 tile along K. Tiles of pairs of
SMs (``Pairs``), which share what they load, are estimated in microseconds. A pair's tile has any width that is a multiple of 16, so that
tiles fill whole waves. A matrix that is contiguous along K is loaded with any width, another one in whole boxes of 64, of whose last a
part may not be used. Tiles of pairs lie along the rows of the product or of its transpose.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import torch
import triton

from tilescope_kernels._shared.launching import cdiv, gluon_capability, multiprocessors
from tilescope_kernels.matrix_products.aligned_rows import columns, is_askew

#: Whether this version of Triton names parameters and places shared memory as the PTX of pairs expects.
KNOWN = triton.__version__.startswith("3.6.")

#: Elements of a step along K: 128 bytes.
BLOCK_K = 64
#: Rows and columns of operands that L2 delivers while a 128x256 tile multiplies one step along K: if all extents are multiples
#: of 128 bytes, and if they are not. Rows that do not start at memory sectors count as so many.
_ARRIVING_WHOLE, _ARRIVING, _ASKEW = 490, 440, 1.5
#: Elements of a tile whose step is the unit of time, and steps of writing it. This and what the estimates in steps add are fitted
#: to timings of 45 sizes on an H200.
UNIT, WRITING = 128 * 256, 2

T = TypeVar("T")


def piece(width: int) -> int:
    """Columns of a tile that are stored at once: the largest power of two that divides its ``width``, 64 at most."""
    return min(width & -width, 64)


class Product(NamedTuple):
    """Extents of a product, the GPU's SMs, and ``askew``: whether rows of a, and of b, do not start at memory sectors."""

    m: int
    n: int
    k: int
    programs: int
    askew: tuple[bool, bool] = (False, False)

    @classmethod
    def of(cls, a: torch.Tensor, b: torch.Tensor) -> Product:
        """The product of two matrices. In FP8 K is halved: a step has twice the elements, at twice the rate."""
        k = cdiv(a.shape[1] * a.element_size(), 2)
        return cls(a.shape[0], b.shape[1], k, multiprocessors(a), (is_askew(a), is_askew(b)))

    @property
    def turned(self) -> Product:
        """The product of b.T and a.T."""
        return self._replace(m=self.n, n=self.m, askew=self.askew[::-1])

    @property
    def steps(self) -> int:
        """Steps along K."""
        return cdiv(self.k, BLOCK_K)

    def loads(self, rows: float, columns: float) -> float:
        """Rows of a and columns of b that a step loads, counted as rows that start at sectors."""
        of_a, of_b = (_ASKEW if each else 1.0 for each in self.askew)
        return of_a * rows + of_b * columns

    def step(self, multiplying: float, rows: float, columns: float) -> float:
        """Time of a step that takes ``multiplying`` unless so many rows of a and columns of b arrive later."""
        arriving = _ARRIVING if (self.m | self.n | self.k) % 64 else _ARRIVING_WHOLE
        return max(multiplying, self.loads(rows, columns) / arriving)


@dataclass(frozen=True)
class Tiling:
    """A tile of ``rows`` rows for each of ``groups`` warpgroups and ``wide`` columns. The ring of operands has ``stages``."""

    rows: int
    wide: int
    stages: int = 4
    groups: int = 2

    @property
    def height(self) -> int:
        return self.groups * self.rows


def quickest(tilings: Iterable[T], time: Callable[[T], float]) -> tuple[float, T]:
    """The least estimated time, and the tiling that has it: the first of several."""
    return min(((time(each), each) for each in tilings), key=operator.itemgetter(0))


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


#: Microseconds of tiles of 128 columns of ``split_k``: their start, of an element of K by their rows, and of a wave besides.
_SPLIT_START, _SPLIT_K, _SPLIT_WAVE = 2.9, {128: 5.7e-3, 64: 2.9e-3}, 0.15
#: Microseconds: of a launch until the first operands arrive; of a step of a 128x256 tile, and of any step besides; so much slower with
#: 128 rows for each warpgroup; of loading a row or column of a step; and of writing a tile.
_START, _MULTIPLYING, _ANY_STEP, _TALL, _ROW, _WRITING = 3.8, 0.625, 0.01, 1.03, 1.56e-3, 1.5
#: Slowdown of pairs that share the smaller operand, with 64 rows for each warpgroup.
_SMALLER = 1.03
#: A step takes as long as the slower of multiplying and loading, and longer where they are close.
_POWER = 8
#: Microseconds of tiles of one SM: their start, and what they estimate as a step. Pairs, or tiles of ``split_k``, are chosen if tiles of one
#: SM take so much longer by the estimates, or pairs if rows do not start at memory sectors.
_ALONE_START, _ALONE_STEP, _GAIN, _GAIN_SPLIT, _GAIN_ASKEW = 4.3, 0.635, 1.05, 1.02, 0.97
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
        """Estimated microseconds. They are more where a pair shares the smaller operand: more tiles read the other one."""
        if self.turned:
            product = product.turned
        (down, across), area = self.extents, self.height * self.wide / UNIT
        loaded_m, loaded_n = self._of_pair(self.loaded)
        # A pair loads what it shares once.
        multiplying, loading = (
            area * (_TALL if self.rows == 128 else 1.0) * _MULTIPLYING + _ANY_STEP,
            product.loads(loaded_m / 2, loaded_n / 2) * _ROW,
        )
        step = (multiplying**_POWER + loading**_POWER) ** (1 / _POWER)
        waves = cdiv(cdiv(product.m, down) * cdiv(product.n, across), product.programs // 2)
        shared = 1.0 if self.rows == 128 or self.stacked == (product.n >= product.m) else _SMALLER
        return shared * (_START + waves * (product.steps * step + _WRITING * area))


def _ring(rows: int, loaded: int, wide: int) -> tuple[int, int]:
    """Stages, as many as fit and eight at most, and buffers for each warpgroup: two if four stages fit beside them, else one."""
    step, buffer = 2 * BLOCK_K * (2 * rows + loaded), 128 * piece(wide)
    two, one = (min(8, (_ROOM - 2 * buffers * buffer) // step) for buffers in (2, 1))
    return (two, 2) if two >= 4 else (one, 1)


def _pairs(rows: int, wide: int) -> Pairs:
    stages, buffers = _ring(rows, wide, wide)
    return Pairs(rows, wide, stages, buffers=buffers)


#: Others have the least estimate at no size of the models.
TILES = (_pairs(128, 160), *(_pairs(64, wide) for wide in (208, 96, 112, 144, 160, 224)))
PAIRS = tuple(
    replace(each, stacked=stacked, turned=turned)
    for each in TILES
    for stacked in (True, False)
    for turned in (False, True)
)


#: Takes as long as tiles of 128x128 of one SM.
_SQUARE = _pairs(64, 128)


def is_between(product: Product) -> bool:
    """Whether tiles of 128x128 are at most the SMs and those of 64x128 are more, along a K so long that narrower tiles of pairs may pay."""
    (m, n, _, programs, askew), long = product, product.steps >= 32
    fits = cdiv(m, 128) * cdiv(n, 128) <= programs < cdiv(m, 64) * cdiv(n, 128)
    return long and fits and min(m, n) >= 512 and not any(askew)


@functools.lru_cache(maxsize=4096)
def tiling_of_pairs(product: Product, along_k: tuple[bool, bool]) -> Pairs | None:
    """The tiling for a result with many tiles, or ``is_between``. None where tiles of one SM may be as quick."""
    if product.k < _LEAST_K:
        return None
    served = [each.ordered(along_k) for each in PAIRS if each.serves(along_k)]
    if not served:
        return None
    time, best = quickest(served, lambda each: each.time(product))
    if is_between(product):
        return best if _GAIN * time < _SQUARE.time(product) else None
    others, _ = quickest(TILINGS, lambda each: each.time(product))
    if any(product.askew):
        others = min(others, of_copies(product)[0])
    gain = _GAIN_ASKEW if any(product.askew) else _GAIN
    return best if gain * time < _ALONE_START + _ALONE_STEP * others else None


@functools.lru_cache(maxsize=4096)
def rows_of_split(product: Product) -> int:
    """Rows of the tiles of ``split_k`` that are quicker than those of one SM, which start later; 0 where none is or rows may not be aligned."""
    if product.k < _LEAST_K or (product.n | product.k) % 16:
        return 0

    def time(rows: int) -> float:
        waves = cdiv(cdiv(product.m, rows) * cdiv(product.n, 128), product.programs)
        return _SPLIT_START + waves * (_SPLIT_K[rows] * product.k + _SPLIT_WAVE)

    (alone, _), (split, rows) = quickest(TILINGS, lambda each: each.time(product)), quickest(_SPLIT_K, time)
    return rows if _GAIN_SPLIT * split < _ALONE_START + _ALONE_STEP * alone else 0


def along_k(a: torch.Tensor, b: torch.Tensor) -> tuple[bool, bool]:
    """Whether a and b are contiguous along K."""
    return not columns(a), columns(b)


def serves(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the GPU and the operands fit ``matmul_hopper``, and there are more tiles of 128x128 than SMs.

    Not for up to 64 rows: half of a tile would be empty, and copying b would take longer than the product.
    """
    (m, k), n, size = a.shape, b.shape[1], a.element_size()
    is_known = a.dtype in (torch.float16, torch.bfloat16, torch.float8_e4m3fn)
    if gluon_capability(a) != 90 or not is_known or k * size < 2 * BLOCK_K or n < 64:
        return False
    # Tensor cores take one-byte operands only if they are contiguous along K.
    if size == 1 and (a.stride(1) != 1 or b.stride(0) != 1):
        return False
    return m > 64 and cdiv(m, 128) * cdiv(n, 128) > multiprocessors(a)


def plan(a: torch.Tensor, b: torch.Tensor) -> Alone | None:
    """The tiling of ``matmul_hopper`` for a product with a contiguous result; None where it does not serve it."""
    return tiling(Product.of(a, b), b.shape[1] % 8 == 0) if serves(a, b) else None


def plan_of_pairs(a: torch.Tensor, b: torch.Tensor) -> Pairs | None:
    """The tiling of ``matmul_pairs``; None where Triton, the GPU, operands or TMA's writes do not fit, or others may be as quick."""
    product = Product.of(a, b)
    if not KNOWN or gluon_capability(a) != 90 or a.dtype not in (torch.float16, torch.bfloat16) or b.shape[1] % 8:
        return None
    return tiling_of_pairs(product, along_k(a, b)) if serves(a, b) or is_between(product) else None
