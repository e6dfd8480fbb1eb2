"""The bytes that a block of addresses touches: distinct bytes, 32-byte sectors, and a bitmap for the whole launch.

A block is an array of addresses, of any shape, of elements of one size. Pure NumPy.
"""

from __future__ import annotations

import bisect
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

#: Bytes of a sector, the unit of transfers between L2 and L1 of NVIDIA GPUs.
SECTOR = 32

Addresses = npt.NDArray[np.uint64]
#: A number for each byte of an allocation; 0 where nothing is known of it.
Marks = npt.NDArray[np.uint8]


class OutOfBounds(Exception):
    """An access to memory of no tensor of the kernel. ``at`` is the first such address.

    ``where`` is its position relative to the tensor at the address ``near``. ``verb`` is ``reads`` or ``writes``.
    """

    def __init__(self, where: str, near: int | None, at: int) -> None:
        super().__init__(where, near, at)
        self.where, self.near, self.at = where, near, at
        self.verb = "touches"

    def __str__(self) -> str:
        return self.beside("a tensor")

    def beside(self, name: str) -> str:
        """The position relative to the nearest tensor, which is called ``name``."""
        return "memory of no tensor" if self.near is None else f"{self.where} {name}"


def _bytes(count: int) -> str:
    return "1 byte" if count == 1 else f"{count:,} bytes"


@dataclass(frozen=True)
class Runs:
    """Disjoint ranges of bytes ``[starts, ends)``, ascending."""

    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]

    @property
    def bytes(self) -> int:
        """Distinct bytes."""
        return int((self.ends - self.starts).sum())

    @property
    def sectors(self) -> int:
        """Distinct sectors that the bytes lie in."""
        first, last = self.starts // SECTOR, (self.ends - 1) // SECTOR
        shared = np.count_nonzero(first[1:] == last[:-1])
        return int((last - first + 1).sum()) - int(shared)


def runs(addresses: Addresses, size: int) -> Runs:
    """The bytes that elements of ``size`` bytes at ``addresses`` (any shape, any order, repeats allowed) cover."""
    places = addresses.astype(np.int64, copy=False)
    if places.ndim > 1 and places.shape[-1] > 1 and places.flat[1] - places.flat[0] != size:
        # A tile may be contiguous along another dimension, as a transposed operand is.
        places = np.moveaxis(places, _fastest(places), -1)
    flat = places.reshape(-1)
    if flat.size == 0:
        return Runs(flat, flat)
    found = _in_order(flat, size)
    return found if found.starts.size <= flat.size // 4 else _in_order(np.unique(flat), size)


def _fastest(places: npt.NDArray[np.int64]) -> int:
    """The dimension with the smallest stride above 0."""
    origin = places[(0,) * places.ndim]
    steps = {
        axis: abs(int(places[tuple(int(axis == other) for other in range(places.ndim))] - origin))
        for axis in range(places.ndim)
        if places.shape[axis] > 1
    }
    moving = {axis: step for axis, step in steps.items() if step}
    return min(moving, key=lambda axis: moving[axis]) if moving else places.ndim - 1


def _in_order(flat: npt.NDArray[np.int64], size: int) -> Runs:
    """The runs of elements that follow one another in the given order, sorted and merged. Quick where there are few."""
    breaks = np.flatnonzero(np.diff(flat) != size)
    starts = flat[np.concatenate(([0], breaks + 1))]
    ends = flat[np.concatenate((breaks, [flat.size - 1]))] + size
    if starts.size > 1 and not (starts[1:] > starts[:-1]).all():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    return Runs(starts, ends) if (starts[1:] > ends[:-1]).all() else _joined(starts, ends)


def _joined(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Runs:
    """Ranges in the order of their starts, merged where they touch or overlap."""
    ends = np.maximum.accumulate(ends)
    fresh = np.concatenate(([True], starts[1:] > ends[:-1]))
    return Runs(starts[fresh], ends[np.concatenate((np.flatnonzero(fresh)[1:] - 1, [starts.size - 1]))])


class Footprint:
    """Marks the touched bytes of allocations, which are ``(address, bytes)`` and must not overlap.

    ``starts`` are the addresses of allocations and ``marks`` those of their bytes, in memory that forked processes share. ``used`` is
    the set of allocations that this process has marked.
    """

    def __init__(self, allocations: Iterable[tuple[int, int]]) -> None:
        ordered = sorted(set(allocations))
        self.used: set[int] = set()
        self.starts = [start for start, _ in ordered]
        self._sizes = [size for _, size in ordered]
        self.marks = [shared(size) for size in self._sizes]

    def __getstate__(self) -> set[int]:
        return self.used

    def __setstate__(self, used: set[int]) -> None:
        self.used = used

    @property
    def bytes(self) -> int:
        """Distinct bytes touched so far."""
        return sum(int(np.count_nonzero(self.marks[index])) for index in self.used)

    def add(self, found: Runs) -> None:
        """Marks the bytes. Raises OutOfBounds where one belongs to no allocation."""
        for index, within in self.placed(found):
            self.mark(index, within)

    def placed(self, found: Runs) -> Iterator[tuple[int, Runs]]:
        """Yields the numbers of the touched allocations, with the ranges relative to their starts. Raises OutOfBounds."""
        if not found.starts.size:
            return
        first, last = int(found.starts[0]), int(found.ends[-1])
        index = bisect.bisect_right(self.starts, first) - 1
        if index >= 0 and last <= self.starts[index] + self._sizes[index]:
            yield index, Runs(found.starts - self.starts[index], found.ends - self.starts[index])
            return
        # An access to several allocations.
        for start, end in zip(found.starts.tolist(), found.ends.tolist(), strict=True):
            index = bisect.bisect_right(self.starts, start) - 1
            if index < 0 or end > self.starts[index] + self._sizes[index]:
                raise self._outside(start, end, index)
            yield index, Runs(np.array([start - self.starts[index]]), np.array([end - self.starts[index]]))

    def mark(self, index: int, within: Runs, value: int = 1, *, over: bool = True) -> None:
        """Marks ranges of an allocation; without ``over`` only bytes that have no mark."""
        self.used.add(index)
        for marks, place in pieces(self.marks[index], within):
            if over or not marks[place].max(initial=0):
                marks[place] = value
            elif not marks[place].min(initial=255):
                marks[place] = np.where(marks[place] == 0, np.uint8(value), marks[place])

    def index(self, address: int) -> int | None:
        """The number of the allocation that starts at an address; None without one."""
        place = bisect.bisect_left(self.starts, address)
        return place if place < len(self.starts) and self.starts[place] == address else None

    def _outside(self, start: int, end: int, index: int) -> OutOfBounds:
        """The error for the bytes ``[start, end)``. Allocation ``index`` is the last one that begins before them (-1: none)."""
        if index >= 0 and start < self.starts[index] + self._sizes[index]:
            beyond = self.starts[index] + self._sizes[index]
            return OutOfBounds(f"{_bytes(end - beyond)} past the end of", self.starts[index], beyond)
        after = start - self.starts[index] - self._sizes[index] if index >= 0 else None
        before = self.starts[index + 1] - start if index + 1 < len(self.starts) else None
        if before is not None and (after is None or before < after):
            return OutOfBounds(f"{_bytes(before)} before the start of", self.starts[index + 1], start)
        if after is None:
            return OutOfBounds("", None, start)
        where = f"{_bytes(after)} after the end of" if after else "what follows the end of"
        return OutOfBounds(where, self.starts[index], start)


class Trace(Footprint):
    """The touched bytes of the same allocations as ``of``, kept as ranges: one program has few."""

    def __init__(self, of: Footprint) -> None:
        self.used = set()
        self.starts, self._sizes, self.marks = of.starts, of._sizes, []
        self._found: dict[int, list[Runs]] = {}

    def mark(self, index: int, within: Runs, value: int = 1, *, over: bool = True) -> None:
        self._found.setdefault(index, []).append(within)

    def ranges(self) -> dict[int, Runs]:
        """The touched ranges of each allocation."""
        return {index: merged(found) for index, found in self._found.items()}

    def holds(self, index: int, found: Runs) -> bool:
        """Whether all the ranges are within the allocation."""
        return bool(found.starts[0] >= 0 and found.ends[-1] <= self._sizes[index])


def merged(found: list[Runs]) -> Runs:
    """The union of ranges."""
    starts, ends = np.concatenate([one.starts for one in found]), np.concatenate([one.ends for one in found])
    order = np.argsort(starts, kind="stable")
    return _joined(starts[order], ends[order])


def shared(size: int) -> Marks:
    """A zero for each of ``size`` bytes, in memory whose pages are allocated when they are first written."""
    return np.frombuffer(mmap.mmap(-1, size), dtype=np.uint8)


def pieces(marks: Marks, found: Runs) -> Iterator[tuple[Marks, Any]]:
    """Yields pairs of an array and an index of it, which together select the bytes of the ranges."""
    starts, ends = found.starts, found.ends
    lengths = ends - starts
    if starts.size > 2 and (lengths == lengths[0]).all():
        steps = np.diff(starts)
        if (steps == steps[0]).all():
            rows = (starts.size, int(lengths[0]))
            yield np.lib.stride_tricks.as_strided(marks[int(starts[0]) :], rows, (int(steps[0]), 1)), ...
            return
    if starts.size > 256:
        # Too many for a loop: computes the position of every byte.
        within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        yield marks, np.repeat(starts, lengths) + within
        return
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        yield marks, slice(start, end)
