"""Faults that programs of a launch show while they are interpreted, gathered by kind and line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilescope.execution import kernel_syntax
from tilescope.interpreter import accesses, arguments
from tilescope.interpreter.races import EQUAL, STORES

if TYPE_CHECKING:
    from tilescope.execution.launches import Launch
    from tilescope.interpreter.meter import Access
    from tilescope.interpreter.not_finite import Origin
    from tilescope.interpreter.races import Program

#: Bytes on which atomics contend, the number of programs and of atomics on each element from which they do, and atomics of a
#: program from which those on integers are no counter of programs.
_FEW_BYTES, _MANY_PROGRAMS, _MANY_ATOMICS, _COUNTING = 128, 256, 1024, 32
#: Ranges of bytes that are kept before they are merged.
_MOST = 256


@dataclass
class Fault:
    """A fault at a line: its bytes, its programs, and the marks of programs and of earlier ones that they met."""

    ranges: list[accesses.Runs] = field(default_factory=list)
    programs: set[int] = field(default_factory=set)
    marks: set[int] = field(default_factory=set)
    others: set[int] = field(default_factory=set)

    def add(self, found: accesses.Runs) -> None:
        """Adds bytes."""
        self.ranges.append(found)
        if len(self.ranges) > _MOST:
            self.ranges = [accesses.merged(self.ranges)]


@dataclass
class Atomics:
    """Atomics of a line: their bytes, their number and their programs."""

    fault: Fault = field(default_factory=Fault)
    lanes: int = 0
    floating: bool = False


class Faults:
    """The faults of a launch, or of one process's share of it."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], Fault] = {}
        self._atomics: dict[int, Atomics] = {}
        #: Types and numbers of additions of sums that no longer grow, by line.
        self.stuck: dict[int, tuple[str, int]] = {}
        #: How the first value that is not finite was made.
        self.origin: Origin | None = None
        #: Programs that violate an assertion, by its line and text.
        self._violated: dict[tuple[int, str], set[int]] = {}

    def violate(self, line: int, text: str, program: int) -> None:
        """Adds a program that violates the assertion at a line."""
        self._violated.setdefault((line, text), set()).add(program)

    def add(self, kind: str, line: int, found: accesses.Runs, by: Program, others: set[int]) -> None:
        """Adds the bytes ``found`` of a program, and the marks of ``others`` that accessed them earlier."""
        fault = self._found.setdefault((kind, line), Fault())
        fault.add(found)
        fault.programs.add(by.number)
        fault.marks.add(by.mark)
        fault.others |= others

    def add_atomics(self, by: Access, found: accesses.Runs, lanes: int) -> None:
        """Counts atomics on ``lanes`` elements, whose bytes are ``found``."""
        if not lanes:
            return
        line = self._atomics.setdefault(by.line, Atomics(floating=by.floating))
        line.fault.add(found)
        line.fault.programs.add(by.program.number)
        line.lanes += lanes

    def _contended(self, launch: Launch) -> Iterator[dict[str, Any]]:
        for line, atomics in self._atomics.items():
            touched, programs = accesses.merged(atomics.fault.ranges), len(atomics.fault.programs)
            counts = not atomics.floating and atomics.lanes < _COUNTING * programs
            few = touched.bytes <= _FEW_BYTES and atomics.lanes >= _MANY_ATOMICS * max(1, touched.bytes // 4)
            if few and programs >= _MANY_PROGRAMS and not counts:
                tensor = arguments.named(launch.arguments, int(touched.starts[0]))
                found = {"bytes": touched.bytes, "programs": programs, "tensor": tensor, "atomics": atomics.lanes}
                yield {"kind": "contended-atomics", "line": line, **found}

    def merge(self, other: Faults) -> None:
        """Adds the faults that another process found."""
        for key, theirs in other._found.items():
            mine = self._found.setdefault(key, Fault())
            mine.add(accesses.merged(theirs.ranges))
            for name in ("programs", "marks", "others"):
                getattr(mine, name).update(getattr(theirs, name))
        for place, programs in other._violated.items():
            self._violated.setdefault(place, set()).update(programs)
        for line, atomics in other._atomics.items():
            known = self._atomics.setdefault(line, Atomics(floating=atomics.floating))
            known.fault.add(accesses.merged(atomics.fault.ranges))
            known.fault.programs |= atomics.fault.programs
            known.lanes += atomics.lanes

    def record(self, launch: Launch) -> list[dict[str, Any]]:
        """The faults in the launch's record, in order of lines. See ``tilescope.table.kernel_faults``."""
        asserted = [
            {"kind": "assertion", "line": line, "text": text, "programs": len(programs)}
            for (line, text), programs in self._violated.items()
        ]
        found: list[dict[str, Any]] = []
        for (kind, line), fault in sorted(self._found.items(), key=lambda item: (item[0][0] != STORES, item[0][1])):
            if kind == EQUAL and not kernel_syntax.computed_from_memory(launch.function.fn, line):
                continue
            touched = accesses.merged(fault.ranges)
            tensor = arguments.named(launch.arguments, int(touched.starts[0]))
            if any(other.get("tensor") == tensor for other in found):
                continue  # a load and a store of the same bytes are one race
            # Earlier programs are known by their marks, and most are among the later ones.
            programs = len(fault.programs) + len(fault.others - fault.marks)
            told = STORES if kind == EQUAL else kind
            found.append({"kind": told, "line": line, "bytes": touched.bytes, "programs": programs, "tensor": tensor})
        found += self._contended(launch)
        found += [
            {"kind": "stuck-sum", "line": line, "type": kind, "additions": count}
            for line, (kind, count) in self.stuck.items()
        ]
        if self.origin is not None:
            found.append({"kind": "not-finite", **vars(self.origin)})
        return sorted([*asserted, *found], key=lambda fault: int(fault["line"]))
