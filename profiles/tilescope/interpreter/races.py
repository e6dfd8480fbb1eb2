"""Accesses to the same bytes whose order a GPU leaves to chance: of several programs, or of lanes of one. Pure NumPy.

Programs are interpreted one after another, so every access is compared with those of earlier programs. Nothing is a race after a
program's first atomic with an order (``sem`` other than ``relaxed``) or volatile load, because those may have made it wait for
the others. A store of the value that memory already holds is a race only if the value may have been another with other inputs: the
program has read memory that no earlier one has, and its value is computed from memory. Lanes of one store are in any order, too.
A lane's access to what another lane of the program stored needs a barrier, because another thread may hold that lane. Reductions,
products and atomics count as barriers, since the compiler often puts one there.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tilescope.interpreter.accesses import Addresses, Footprint, Marks, Runs, pieces, runs, shared

#: Kinds of races (``tilescope.table.kernel_faults``).
STORES, READS, ADDED, LANES = "race-of-stores", "race-of-reads", "race-with-atomics", "race-of-lanes"
#: A store or a load of what another lane of the program stored.
AFTER_STORE = "no-barrier"
#: Stores of equal values by programs that have read different bytes or by lanes of one store, and stores of unknown values.
EQUAL, EQUAL_LANES, UNDECIDED = "equal-stores", "equal-lanes", "undecided-race"
#: Marks of bytes that atomics changed, and of bytes that several programs read. Others are those of one program.
_ATOMIC, SEVERAL = 254, 255
_PROGRAMS = 253
#: Bytes that are looked at together: pages without a mark take no memory.
_AT_ONCE = 1 << 20
#: The last stores of a program that are kept.
_KEPT = 32


@dataclass
class Elements:
    """Elements that a program accesses: their addresses, their lanes, and whether the block has several dimensions."""

    addresses: Addresses
    lanes: Callable[[], npt.NDArray[np.int64]]
    tile: bool

    @functools.cached_property
    def ascending(self) -> tuple[Addresses, npt.NDArray[np.int64]]:
        """The addresses in order, and their lanes."""
        order = np.argsort(self.addresses, axis=None, kind="stable")
        return self.addresses.reshape(-1)[order], self.lanes()[order]


@dataclass
class Program:
    """A program that is interpreted. ``fresh`` says whether it began a load where none had read.

    It ``adds`` after its first atomic, and is ``synchronized`` after the first operation that may have waited for others. ``stores`` are
    its stores since the last barrier, with the ranges of their bytes.
    """

    number: int = 0
    synchronized: bool = False
    adds: bool = False
    fresh: bool = False
    stores: deque[tuple[Runs, Elements]] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def crossed(self, found: Runs, elements: Elements) -> Addresses:
        """The addresses of those elements that another lane has stored since the last barrier."""
        for ranges, earlier in reversed(self.stores):
            if ranges.starts[0] >= found.ends[-1] or ranges.ends[-1] <= found.starts[0]:
                continue
            (stored, by), (places, lanes) = earlier.ascending, elements.ascending
            at = np.minimum(np.searchsorted(stored, places), stored.size - 1)
            met = stored[at] == places
            # A transposed tile has its elements in the same threads.
            if (crossed := met & (by[at] != lanes)).any() and not (elements.tile and np.array_equal(stored, places)):
                return np.asarray(places[crossed], np.uint64)
            if met.all():
                break
        return np.empty(0, np.uint64)

    @property
    def mark(self) -> int:
        """Its mark, which few other programs share."""
        return 1 + (self.number + 97 * (self.number // _PROGRAMS)) % _PROGRAMS


class Race(NamedTuple):
    """The kind of a race, its allocation, the bytes, and the marks of the programs that accessed them earlier."""

    kind: str
    allocation: int
    bytes: Runs
    others: set[int]


class Races:
    """The programs' accesses to each byte of a launch's allocations. ``read`` and ``written`` are its footprints."""

    def __init__(self, read: Footprint, written: Footprint) -> None:
        self.read, self.written = read, written
        #: The marks of readers, of allocations that are written too.
        self._readers: dict[int, Marks] = {}
        #: The allocations with bytes that were read first and stored to afterwards, or added to by atomics on floats.
        self.overwritten: set[int] = set()

    def reads(self, found: Runs, by: Program) -> list[Race]:
        """Notes a load. Returns a race where other programs stored the bytes."""
        races = []
        for index, within in self.read.placed(found):
            by.fresh = by.fresh or not self.read.marks[index][within.starts[0]]
            self.read.mark(index, within, by.mark, over=False)
            if index not in self.written.used:
                continue
            self._mark_readers(index, within, by)
            if not by.synchronized:
                races += self._contested(READS, index, self.written.marks[index], within, {by.mark, _ATOMIC})
        return races

    def stores(self, found: Runs, by: Program, changed: Callable[[], Runs | None]) -> list[Race]:
        """Notes a store. Returns races with other programs' stores and loads of those bytes that are ``changed`` by it.

        Without values, which show what is changed, the race is UNDECIDED.
        """
        races = []
        for index, within in self.written.placed(found):
            if index in self.read.used and index not in self._readers:
                self._first_store(index, by)
            if index in self._readers and index not in self.overwritten and self._overwrites(index, within):
                self.overwritten.add(index)
            marks = [(STORES, self.written.marks[index]), (READS, self._readers.get(index))]
            suspected = [(kind, of) for kind, of in marks if of is not None and _others(of, within, by.mark)]
            if suspected and not by.synchronized:
                races += self._changing(suspected, index, within, by, changed())
            self.written.mark(index, within, by.mark)
        return races

    def _changing(
        self, suspected: list[tuple[str, Marks]], index: int, within: Runs, by: Program, changed: Runs | None
    ) -> list[Race]:
        mine = {by.mark, _ATOMIC} if by.adds else {by.mark}
        if changed is None:
            return [
                race._replace(kind=UNDECIDED)
                for kind, of in suspected
                for race in self._contested(kind, index, of, within, mine)
            ]
        moved = [ranges for place, ranges in self.written.placed(changed) if place == index]
        races = [
            race
            for kind, of in suspected
            for ranges in moved
            for race in self._contested(kind, index, of, ranges, mine)
        ]
        return races or (self._contested(EQUAL, index, self.written.marks[index], within, mine) if by.fresh else [])

    def unordered(
        self, found: Runs, elements: Elements, size: int, by: Program, changed: Callable[[], Runs | None] | None = None
    ) -> list[Race]:
        """The race of a load, or of a store that has ``changed`` bytes, with earlier stores of other lanes. Notes a store."""
        crossed = np.empty(0, np.uint64) if by.synchronized else by.crossed(found, elements)
        if changed is not None:
            by.stores.append((found, elements))
            if crossed.size:
                # A store of values that were left out changes nothing that is known.
                moved = changed() or runs(crossed[:0], size)
                starts = np.append(moved.starts, np.iinfo(np.int64).max)
                places = crossed.astype(np.int64)
                crossed = crossed[starts[np.searchsorted(moved.ends, places, side="right")] <= places]
        met = runs(crossed, size)
        return [Race(AFTER_STORE, index, met, set()) for index, _ in self.written.placed(met)]

    def repeats(self, repeated: tuple[Runs, Runs] | None, found: Runs) -> Race:
        """The race of a store with ``repeated`` addresses: all of them, and those at which lanes store different values."""
        every, differing = repeated or (found, found)
        kind = UNDECIDED if repeated is None else LANES if differing.bytes else EQUAL_LANES
        of = differing if differing.bytes else every
        return Race(kind, next(index for index, _ in self.written.placed(of)), of, set())

    def adds(self, found: Runs, by: Program, *, floating: bool) -> list[Race]:
        """Notes an atomic. Returns a race where other programs stored the bytes of a float, which cannot be a flag."""
        races = []
        for index, within in self.written.placed(found):
            if floating and not by.synchronized and index in self.written.used:
                races += self._contested(ADDED, index, self.written.marks[index], within, {by.mark, _ATOMIC})
            if floating:
                self.overwritten.add(index)
            self.read.mark(index, within, by.mark, over=False)
            self.written.mark(index, within, _ATOMIC, over=False)
        by.adds = True
        return races

    def _overwrites(self, index: int, within: Runs) -> bool:
        """Whether any of the bytes was read, and not stored to before."""
        read, written = (pieces(marks, within) for marks in (self._readers[index], self.written.marks[index]))
        return any(
            ((array[place] != 0) & (stored[place] == 0)).any()
            for (array, place), (stored, _) in zip(read, written, strict=True)
        )

    def _first_store(self, index: int, by: Program) -> None:
        """Makes the marks of readers. Only the first reader is known: the current program, or there may be several."""
        first = self.read.marks[index]
        readers = self._readers[index] = shared(first.size)
        for start in range(0, first.size, _AT_ONCE):
            if (part := first[start : start + _AT_ONCE]).any():
                own = np.where(part == by.mark, np.uint8(by.mark), np.uint8(SEVERAL))
                readers[start : start + _AT_ONCE] = np.where(part == 0, np.uint8(0), own)

    def _mark_readers(self, index: int, within: Runs, by: Program) -> None:
        if index not in self._readers:
            self._readers[index] = shared(self.read.marks[index].size)
        for marks, where in pieces(self._readers[index], within):
            before = marks[where]
            marks[where] = np.where((before == 0) | (before == by.mark), np.uint8(by.mark), np.uint8(SEVERAL))

    def _contested(self, kind: str, index: int, marks: Marks, within: Runs, mine: set[int]) -> list[Race]:
        """The race on those bytes whose marks are neither 0 nor ``mine``; empty without any."""
        if not _others(marks, within, min(mine)):
            return []
        lengths = within.ends - within.starts
        every = np.arange(int(lengths.sum())) + np.repeat(within.starts - (np.cumsum(lengths) - lengths), lengths)
        others = ~np.isin(marks[every], [0, *mine])
        if not others.any():
            return []
        places = (every[others] + self.written.starts[index]).astype(np.uint64)
        return [Race(kind, index, runs(places, 1), set(np.unique(marks[every[others]]).tolist()))]


def _others(marks: Marks, within: Runs, mine: int) -> bool:
    """Whether any of the bytes has another mark than 0 and ``mine``."""
    for array, place in pieces(marks, within):
        of = array[place]
        if (
            of.size
            and (most := int(of.max()))
            and (most != mine or int(of.min()) != mine)
            and np.any((of != 0) & (of != mine))
        ):
            return True
    return False
