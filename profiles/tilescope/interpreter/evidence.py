"""What programs of a launch show of faults while they are interpreted (``collectors.fault_rules``). Pure NumPy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilescope.interpreter import accesses
from tilescope.interpreter.races import UNDECIDED, Program, Race

if TYPE_CHECKING:
    from tilescope.interpreter.meter import Access
    from tilescope.interpreter.not_finite import Origin

#: Ranges of bytes that are kept before they are merged.
_MOST = 256


@dataclass
class Touched:
    """Accesses at a line: their bytes, their programs, and the marks of programs and of earlier ones that they met.

    ``lanes`` is the number of elements of atomics, ``floating`` says that these are floats.
    """

    ranges: list[accesses.Runs] = field(default_factory=list)
    programs: set[int] = field(default_factory=set)
    marks: set[int] = field(default_factory=set)
    others: set[int] = field(default_factory=set)
    lanes: int = 0
    floating: bool = False

    def add(self, found: accesses.Runs) -> None:
        """Adds bytes."""
        self.ranges.append(found)
        if len(self.ranges) > _MOST:
            self.ranges = [accesses.merged(self.ranges)]

    def merge(self, other: Touched) -> None:
        """Adds the accesses that another process found."""
        self.add(accesses.merged(other.ranges))
        for name in ("programs", "marks", "others"):
            getattr(self, name).update(getattr(other, name))
        self.lanes, self.floating = self.lanes + other.lanes, other.floating


@dataclass
class Evidence:
    """What a launch shows, or one process's share of it.

    ``races`` are by kind, line and allocation, ``atomics`` by line, ``violated`` are programs by the line and text of an assertion,
    ``divided`` those that use a quotient by zero, by its line and whether it is in an address. ``stuck`` has the type and the number of additions of sums that no longer
    grow, by line. ``origin`` tells how the first value that is not finite was made.
    """

    races: dict[tuple[str, int, int], Touched] = field(default_factory=dict)
    atomics: dict[int, Touched] = field(default_factory=dict)
    violated: dict[tuple[int, str], set[int]] = field(default_factory=dict)
    divided: dict[tuple[int, bool], set[int]] = field(default_factory=dict)
    stuck: dict[int, tuple[str, int]] = field(default_factory=dict)
    origin: Origin | None = None

    @property
    def undecided(self) -> bool:
        """Whether values would show if some programs store the same to the same bytes."""
        return any(kind == UNDECIDED for kind, *_ in self.races)

    def add(self, race: Race, line: int, by: Program) -> None:
        """Adds a program's race at a line."""
        touched = self.races.setdefault((race.kind, line, race.allocation), Touched())
        touched.add(race.bytes)
        touched.programs.add(by.number)
        touched.marks.add(by.mark)
        touched.others |= race.others

    def add_atomics(self, by: Access, found: accesses.Runs, lanes: int) -> None:
        """Counts atomics on ``lanes`` elements, whose bytes are ``found``."""
        if lanes:
            touched = self.atomics.setdefault(by.line, Touched(floating=by.floating))
            touched.add(found)
            touched.programs.add(by.program.number)
            touched.lanes += lanes

    def merge(self, other: Evidence) -> None:
        """Adds what another process found."""
        for key, theirs in other.races.items():
            self.races.setdefault(key, Touched()).merge(theirs)
        for line, theirs in other.atomics.items():
            self.atomics.setdefault(line, Touched()).merge(theirs)
        for name in ("violated", "divided"):
            for place, programs in getattr(other, name).items():
                getattr(self, name).setdefault(place, set()).update(programs)
