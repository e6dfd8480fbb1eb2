"""Derives the accesses of all programs of a grid from a few, where neighbours' accesses differ by a fixed step in bytes.

The caller ensures that addresses depend only on a program's place and the launch's numbers. The last programs of each axis,
where masks cut tiles off, are treated separately. An axis that a kernel divides into rows by ``number // n`` and ``number % n``
is treated as several axes. Pure NumPy.
"""

from __future__ import annotations

import itertools
import math
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tilescope.interpreter import accesses
from tilescope.interpreter.meter import Meter

Place = tuple[int, ...]
#: Most ranges that are merged.
MOST_RANGES = 5_000_000
#: Programs that are checked against the rule beside the farthest one: at least so many, more while there is time up to the second
#: figure, and so many at the ends of axes.
TRIED, TRIED_AT_MOST, TRIED_AT_ENDS = 3, 60, 1
#: Most axes that a grid may divide into.
MOST_AXES = 6
_WAYS = ("read", "written")


class Irregular(Exception):
    """A program does not follow the rule, or there are too many ranges to merge."""


def count(grid: Place, one: Callable[[Place], Meter], late: Callable[[], bool]) -> tuple[Meter, int]:
    """Counts of all programs, and the number of programs that were interpreted.

    ``one`` interprets a program and returns its tracing meter. Additional programs are checked until it is ``late``. Raises Irregular
    where programs do not follow the rule.
    """
    known: dict[Place, Meter] = {}

    def at(place: Place) -> Meter:
        if place not in known:
            known[place] = one(place)
        return known[place]

    try:
        return _count(grid, at, late), len(known)
    except Irregular:
        pass
    axes = [list(_rows(grid, axis, at)) for axis in range(len(grid))]
    if sum(map(len, axes)) == len(grid) or sum(map(len, axes)) > MOST_AXES:
        raise Irregular

    def within_rows(place: Place) -> Meter:
        digits = iter(place)
        return at(tuple(sum(next(digits) * step for step, _ in rows) for rows in axes))

    finer = tuple(extent for rows in axes for _, extent in rows)
    return _count(finer, within_rows, late), len(known)


def _rows(grid: Place, axis: int, at: Callable[[Place], Meter]) -> Iterator[tuple[int, int]]:
    """Yields the axes that an axis divides into, innermost first, as (programs a step, number of steps)."""
    step, extent = 1, grid[axis]

    def place(number: int) -> Place:
        return tuple(number * step if other == axis else 0 for other in range(len(grid)))

    while extent > 1:
        first = at(place(0))
        ranges = _ranges(first)
        steps = [_steps(ranges, _ranges(at(place(1))))]

        def follows(number: int) -> bool:
            try:
                _check(first, ranges, steps, (number,), at(place(number)))  # noqa: B023 (called in this round only)
            except Irregular:
                return False
            return True

        # A mask may cut off the last program, which does not show a division.
        low, high = 1, 2
        while high < extent - 1 and follows(high):
            low, high = high, 2 * high
        if high >= extent - 1 and follows(extent - 2):
            yield step, extent
            return
        high = min(high, extent - 2)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if follows(middle) else (low, middle)
        if extent % high:
            raise Irregular
        yield step, high
        step, extent = step * high, extent // high
    if step == 1:
        yield 1, 1


def _count(grid: Place, at: Callable[[Place], Meter], late: Callable[[], bool]) -> Meter:
    origin = at((0,) * len(grid))
    total = Meter(origin.read, origin.written)
    touched: dict[tuple[str, int], list[accesses.Runs]] = {}
    whole_sectors = True
    for ends in itertools.product(*([False, True] if extent > 1 else [False] for extent in grid)):
        base = tuple(extent - 1 if end else 0 for extent, end in zip(grid, ends, strict=True))
        extents = [1 if end or extent == 1 else extent - 1 for extent, end in zip(grid, ends, strict=True)]
        first = at(base)
        ranges = _ranges(first)
        steps = [
            _steps(ranges, _ranges(at(_moved(base, axis)))) if extent > 1 else dict.fromkeys(ranges, 0)
            for axis, extent in enumerate(extents)
        ]
        for away in _tried(extents, at_ends=any(ends), late=late):
            _check(first, ranges, steps, away, at(tuple(b + a for b, a in zip(base, away, strict=True))))
        total.add(first, math.prod(extents))
        for key, found in ranges.items():
            shifts = _shifts([step[key] for step in steps], extents)
            if shifts.size * found.starts.size > MOST_RANGES:
                raise Irregular
            all_of_them = accesses.merged(
                [
                    accesses.Runs(
                        (found.starts[None] + shifts[:, None]).ravel(), (found.ends[None] + shifts[:, None]).ravel()
                    )
                ]
            )
            footprint: Any = getattr(first, key[0])
            if not footprint.holds(key[1], all_of_them):
                raise Irregular
            touched.setdefault(key, []).append(all_of_them)
            whole_sectors &= not any(step[key] % accesses.SECTOR for step in steps)
    if not whole_sectors:
        total = total.without_sectors()
    for way in _WAYS:
        distinct = sum(accesses.merged(found).bytes for key, found in touched.items() if key[0] == way)
        setattr(total, way, types.SimpleNamespace(bytes=distinct))
    return total


def _ranges(meter: Meter) -> dict[tuple[str, int], accesses.Runs]:
    return {(way, index): found for way in _WAYS for index, found in getattr(meter, way).ranges().items()}


def _moved(place: Place, axis: int) -> Place:
    return tuple(at + (number == axis) for number, at in enumerate(place))


def _steps(ranges: dict[Any, accesses.Runs], after: dict[Any, accesses.Runs]) -> dict[Any, int]:
    """The step in bytes from each range of a program to that of the next one. Raises Irregular for other ranges."""
    if ranges.keys() != after.keys():
        raise Irregular
    return {key: int(after[key].starts[0] - found.starts[0]) for key, found in ranges.items()}


def _tried(extents: Sequence[int], *, at_ends: bool, late: Callable[[], bool]) -> Iterator[Place]:
    """Yields the distances from a first program to programs to check: its neighbours, the farthest and some between."""
    for axis, extent in enumerate(extents):
        if extent > 1:
            yield _moved((0,) * len(extents), axis)
    yield tuple(extent - 1 for extent in extents)
    draw = np.random.default_rng(0)
    if math.prod(extents) <= 2:
        return
    for number in range(TRIED_AT_ENDS if at_ends else TRIED_AT_MOST):
        if number >= TRIED and late():
            return
        yield tuple(int(draw.integers(extent)) for extent in extents)


def _check(
    first: Meter, ranges: dict[Any, accesses.Runs], steps: list[dict[Any, int]], away: Place, other: Meter
) -> None:
    """Raises Irregular where the program at the distance ``away`` does not touch the first one's ranges, shifted by the steps."""
    found, mine, theirs = _ranges(other), first.without_sectors(), other.without_sectors()
    if found.keys() != ranges.keys() or (mine.counts, mine.lines) != (theirs.counts, theirs.lines):
        raise Irregular
    for key, expected in ranges.items():
        shift = sum(distance * step[key] for distance, step in zip(away, steps, strict=True))
        for which in ("starts", "ends"):
            if not np.array_equal(getattr(expected, which) + shift, getattr(found[key], which)):
                raise Irregular


def _shifts(steps: Sequence[int], extents: Sequence[int]) -> Any:
    """The distinct distances in bytes from the first program's ranges to those of all others."""
    shifts = np.zeros(1, dtype=np.int64)
    for step, extent in zip(steps, extents, strict=True):
        if step and extent > 1:
            if shifts.size * extent > MOST_RANGES:
                raise Irregular
            shifts = np.unique((shifts[:, None] + step * np.arange(extent, dtype=np.int64)).ravel())
    return shifts
