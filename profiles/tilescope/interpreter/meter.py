"""Counters of one launch's memory requests and arithmetic. Pure NumPy."""

from __future__ import annotations

import sys
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy.typing as npt

from tilescope.interpreter import accesses
from tilescope.interpreter.evidence import Evidence
from tilescope.interpreter.races import Elements, Program, Races

if TYPE_CHECKING:
    from tilescope.execution.launches import Launch
    from tilescope.interpreter.not_finite import NotFinite

Array = npt.NDArray[Any]


class Access(NamedTuple):
    """A memory access: its line, its program, whether it is to floats, its elements. For a store the bytes that it will change, those that
    several lanes store to, and those at which these lanes have different values.
    """

    line: int
    program: Program
    floating: bool
    elements: Elements
    changed: Callable[[], accesses.Runs | None]
    repeated: Callable[[], tuple[accesses.Runs, accesses.Runs] | None]


@dataclass
class Meter:
    """The memory requests and operations of one launch.

    ``counts`` has for each way, ``read`` and ``written``: ``requested_WAY``, the bytes of each access in full; ``distinct_WAY`` (bytes)
    and ``sectors_WAY`` of each load or store instruction of a whole block, summed over instructions. ``flops`` include masked lanes.
    An atomic reads and writes. ``read`` and ``written`` mark which bytes were touched at all. ``lines`` maps a line of the kernel's
    file to its ``requested_bytes_WAY`` and ``sectors_WAY``. ``sampled`` is (counted, all) programs where only a sample was counted,
    ``by_rule`` the same where the others were derived from those counted. ``seen`` is evidence of faults, which
    is looked for where there are ``races``. ``storing`` has the line of the first store to each allocation.
    """

    read: accesses.Footprint
    written: accesses.Footprint
    races: Races | None = None
    seen: Evidence = field(default_factory=Evidence)
    counts: Counter[str] = field(default_factory=Counter)
    lines: defaultdict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    sampled: tuple[int, int] | None = None
    by_rule: tuple[int, int] | None = None
    storing: dict[int, int] = field(default_factory=dict)

    def access(self, ways: Sequence[str], addresses: Array, size: int, by: Access) -> None:
        """Counts an access to elements of ``size`` bytes that are ``read``, ``written`` or both (an atomic). Raises OutOfBounds."""
        found = accesses.runs(addresses, size)
        try:
            self._touch(ways, found, addresses.size, size, by)
        except accesses.OutOfBounds as error:
            error.verb = "reads" if "read" in ways else "writes"
            raise
        for way in ways:
            self._count(way, by.line, addresses.size * size, found.bytes, found.sectors)

    def _touch(self, ways: Sequence[str], found: accesses.Runs, lanes: int, size: int, by: Access) -> None:
        if self.races is None:
            for way in ways:
                getattr(self, way).add(found)
            return
        if len(ways) > 1:
            races = self.races.adds(found, by.program, floating=by.floating)
            self.seen.add_atomics(by, found, lanes)
            by.program.stores.clear()
        elif not lanes:
            return
        elif ways[0] == "read":
            races = self.races.reads(found, by.program) + self.races.unordered(found, by.elements, size, by.program)
        else:
            races = self.races.stores(found, by.program, by.changed)
            races += self.races.unordered(found, by.elements, size, by.program, by.changed)
            if found.bytes < lanes * size:
                races.append(self.races.repeats(by.repeated(), found))
            self.storing |= dict.fromkeys(self.written.used - self.storing.keys(), by.line)
        for race in races:
            self.seen.add(race, by.line, by.program)

    def _count(self, way: str, line: int, requested: int, distinct: int, sectors: int) -> None:
        self.counts.update({f"requested_{way}": requested, f"distinct_{way}": distinct, f"sectors_{way}": sectors})
        self.lines[line].update({f"requested_bytes_{way}": requested, f"sectors_{way}": sectors})

    def forget(self, times: int, size: int, line: int, *, written: bool) -> None:
        """Takes back accesses of a program that polled one element in vain, because their number is chance."""
        for way in ("read", "written") if written else ("read",):
            self._count(way, line, -times * size, -times * size, -times)

    def without_sectors(self) -> Meter:
        """The counts that do not depend on where blocks begin in sectors, in a meter with the same footprints."""

        def kept(counts: Counter[str]) -> Counter[str]:
            return Counter({name: count for name, count in counts.items() if not name.startswith("sectors")})

        found = Meter(self.read, self.written, counts=kept(self.counts))
        found.lines |= {line: kept(counts) for line, counts in self.lines.items()}
        return found

    def add(self, share: Meter, times: int = 1) -> None:
        """Adds the counts of another meter, ``times`` times. Footprints are not added."""
        self.counts.update({name: times * count for name, count in share.counts.items()})
        for line, counts in share.lines.items():
            self.lines[line].update({name: times * count for name, count in counts.items()})

    def traced(self) -> Meter:
        """A new meter for the same memory, which keeps ranges of bytes instead of marking them."""
        return Meter(accesses.Trace(self.read), accesses.Trace(self.written))

    def fresh(self) -> Meter:
        """A new meter with the same footprints: for one process's share of a launch."""
        return Meter(self.read, self.written, self.races)

    def merge(self, share: Meter) -> None:
        """Adds the counts of a forked process, and its footprints, which are in the same shared memory."""
        self.add(share)
        self.seen.merge(share.seen)
        self.read.used |= share.read.used
        self.written.used |= share.written.used

    def record(self, launch: Launch) -> dict[str, Any]:
        """The launch's record in the interpreter's artefact. Figures of a sample are scaled to all programs."""
        about: dict[str, Any] = {
            "function": launch.name,
            "grid": launch.grid,
            "config": dict(launch.config),
            "constants": launch.constants,
            "file": launch.file.name,
        }
        counts = self.counts
        if self.sampled is not None:
            # A sample does not show how many bytes of all programs are distinct.
            counted, programs = self.sampled
            return {
                **about,
                "sampled_programs": counted,
                "programs": programs,
                "sampled_bytes_read": counts["requested_read"] * programs / counted,
                "sampled_bytes_written": counts["requested_written"] * programs / counted,
                "sampled_flops": counts["flops"] * programs / counted,
            }
        if self.by_rule is not None:
            about |= {"programs_by_rule": self.by_rule[0], "programs": self.by_rule[1]}
        for way in ("read", "written"):
            sectors = counts[f"sectors_{way}"]
            about |= {
                f"requested_bytes_{way}": counts[f"requested_{way}"],
                f"unique_bytes_{way}": getattr(self, way).bytes,
                f"sector_efficiency_{way}": counts[f"distinct_{way}"] / (accesses.SECTOR * sectors)
                if sectors
                else None,
            }
        return {**about, "requested_flops": counts["flops"], "lines": self.lines}


class OutOfTime(Exception):
    """The work of a launch passed its limit."""


#: Seconds of an operation, and of an element of it: of arithmetic, of a load or a store, and of a multiplication and addition in a
#: product. They are those of a quiet processor, and the same on every other, so that a limit ends the same launches everywhere.
_OPERATION, ELEMENT, ACCESSED, MULTIPLIED = 40e-6, 2e-9, 15e-9, 0.1e-9


@dataclass
class Counting:
    """How a launch is interpreted, and the meter that counts it (None: nothing is counted).

    Without ``values`` floating-point numbers are not computed; if ``blind``, nothing that memory holds is read, and nothing of the ranges
    of addresses that are ``undrawn``. NeedsValues is raised where an address depends on such a value. ``integers`` are the ranges of the launch's
    tensors of integers, ``left_out`` those to which a value was not stored. ``program`` is the one that is interpreted. ``not_finite``
    looks for the first NaN and infinity. ``source`` is the file whose lines are counted. ``work`` is done so far and ``limit`` the
    most, in seconds that follow from the operations and their elements. ``another`` runs a program that has not begun while the current
    one waits, and returns whether there was one.
    """

    meter: Meter | None
    values: bool
    source: str
    limit: float = float("inf")
    work: float = 0.0
    another: Callable[[], bool] | None = None
    blind: bool = False
    undrawn: Sequence[tuple[int, int]] = ()
    integers: Sequence[tuple[int, int]] = ()
    left_out: set[tuple[int, int]] = field(default_factory=set)
    program: Program = field(default_factory=Program)
    not_finite: NotFinite | None = None
    #: Number of lines that the launch's programs have printed.
    printed: int = 0
    #: The additions of sums in half precision that memory holds, by their address.
    sums: dict[int, int] = field(default_factory=dict)

    def line(self) -> int:
        """The line of the kernel's file that is being executed."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.source:
            frame = frame.f_back
        return frame.f_lineno if frame is not None else 0

    def spend(self, elements: int = 0, each: float = ELEMENT) -> None:
        """Adds the work of an operation. Raises OutOfTime above the limit: a loop without end is stopped."""
        self.work += _OPERATION + each * elements
        if self.work > self.limit:
            raise OutOfTime

    def flops(self, count: int) -> None:
        """Counts that many floating-point operations."""
        if self.meter is not None:
            self.meter.counts["flops"] += count
