"""What tilings of 16-bit products on Hopper have in common, and the product that a tiling's time is estimated of.

Estimates of tiles of one SM are in steps of a 128x256 tile along K, those of pairs in microseconds.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch

from tilescope_kernels._shared.launching import cdiv, multiprocessors
from tilescope_kernels.matrix_products.aligned_rows import is_askew

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

    @property
    def is_ragged(self) -> bool:
        """Whether an extent is no multiple of 128 bytes."""
        return (self.m | self.n | self.k) % 64 != 0

    def loads(self, rows: float, columns: float) -> float:
        """Rows of a and columns of b that a step loads, counted as rows that start at sectors."""
        of_a, of_b = (_ASKEW if each else 1.0 for each in self.askew)
        return of_a * rows + of_b * columns

    def step(self, multiplying: float, rows: float, columns: float) -> float:
        """Time of a step that takes ``multiplying`` unless so many rows of a and columns of b arrive later."""
        return max(multiplying, self.loads(rows, columns) / (_ARRIVING if self.is_ragged else _ARRIVING_WHOLE))


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
