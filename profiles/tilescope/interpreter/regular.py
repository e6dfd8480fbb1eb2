"""What all programs of a grid touch, told from a few of them, where each touches what the one before it does a fixed step on.

Addresses must follow from a program's place and the launch's numbers alone, which whoever calls makes sure of. The last programs
of each axis, where masks cut tiles off, are looked at by themselves. Pure NumPy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tilescope.interpreter import accesses
from tilescope.interpreter.meter import Meter

Place = tuple[int, ...]
#: Ranges that are put together at most.
MOST_RANGES = 5_000_000
#: Programs that are tried against the rule beside the farthest one, among those that no mask cuts off and among the others.
TRIED, TRIED_AT_ENDS = 3, 1
_WAYS = ("read", "written")


class Irregular(Exception):
    """Some program does not follow the rule, or what follows cannot be put together."""


class Counted:
    """A number of distinct bytes."""

    def __init__(self, count: int) -> None:
        self.bytes = count


def count(grid: Place, one: Callable[[Place], Meter]) -> tuple[Meter, int]:
    """What all programs ask for, and how many were interpreted to know. ``one`` interprets a program with a meter that traces.

    Raises Irregular where they do not follow the rule.
    """
    known: dict[Place, Meter] = {}

    def at(place: Place) -> Meter:
        if place not in known:
            known[place] = one(place)
        return known[place]

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
        for away in _tried(extents, TRIED_AT_ENDS if any(ends) else TRIED):
            _check(first, ranges, steps, away, at(tuple(b + a for b, a in zip(base, away, strict=True))))
        total.add_times(first, math.prod(extents))
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
        total.without_sectors()
    for way in _WAYS:
        distinct = sum(accesses.merged(found).bytes for key, found in touched.items() if key[0] == way)
        setattr(total, way, Counted(distinct))
    return total, len(known)


def _ranges(meter: Meter) -> dict[tuple[str, int], accesses.Runs]:
    return {(way, index): found for way in _WAYS for index, found in getattr(meter, way).ranges().items()}


def _moved(place: Place, axis: int) -> Place:
    return tuple(at + (number == axis) for number, at in enumerate(place))


def _steps(ranges: dict[Any, accesses.Runs], after: dict[Any, accesses.Runs]) -> dict[Any, int]:
    """By how many bytes the next program's are further on."""
    if ranges.keys() != after.keys():
        raise Irregular
    return {key: int(after[key].starts[0] - found.starts[0]) for key, found in ranges.items()}


def _tried(extents: Sequence[int], some: int) -> Iterator[Place]:
    """Steps from a first program to its neighbours, to the farthest one and to ``some`` between."""
    for axis, extent in enumerate(extents):
        if extent > 1:
            yield _moved((0,) * len(extents), axis)
    yield tuple(extent - 1 for extent in extents)
    draw = np.random.default_rng(0)
    for _ in range(some if math.prod(extents) > 2 else 0):
        yield tuple(int(draw.integers(extent)) for extent in extents)


def _check(
    first: Meter, ranges: dict[Any, accesses.Runs], steps: list[dict[Any, int]], away: Place, other: Meter
) -> None:
    """Raises Irregular where the program that is ``away`` from the first does not touch the same that much further on."""
    found = _ranges(other)
    if found.keys() != ranges.keys() or other.counts() != first.counts():
        raise Irregular
    for key, expected in ranges.items():
        shift = sum(distance * step[key] for distance, step in zip(away, steps, strict=True))
        for which in ("starts", "ends"):
            if not np.array_equal(getattr(expected, which) + shift, getattr(found[key], which)):
                raise Irregular


def _shifts(steps: Sequence[int], extents: Sequence[int]) -> Any:
    """Every distance from the first program's bytes to another's, once."""
    shifts = np.zeros(1, dtype=np.int64)
    for step, extent in zip(steps, extents, strict=True):
        if step and extent > 1:
            if shifts.size * extent > MOST_RANGES:
                raise Irregular
            shifts = np.unique((shifts[:, None] + step * np.arange(extent, dtype=np.int64)).ravel())
    return shifts
