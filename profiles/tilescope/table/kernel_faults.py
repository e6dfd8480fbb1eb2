"""Faults of a kernel's code, and how one is told in a line.

A collector adds the faults of a launch (``collectors.fault_rules``) to its record in the artefact, under ``faults``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tilescope.files import bounded_reading

_TOLD = re.compile(r"(?P<function>\w+), line (?P<line>\d+): (?P<what>.+?): (?P<remedy>[^:;]+)(?:; .*)?")


class Fault(NamedTuple):
    """What is wrong at a line of the launched function's file, and what to do. Neither text has a colon or a semicolon.

    A ``wrong`` one fails the case, because its results are wrong or chance. Others warn of what is probably not meant.
    """

    line: int
    what: str
    remedy: str
    wrong: bool = False

    def told(self, function: str) -> str:
        """The fault in one line."""
        return f"{function}, line {self.line}: {self.what}: {self.remedy}"


class Told(NamedTuple):
    """The parts of a fault's line."""

    function: str
    line: str
    what: str
    remedy: str


def read(text: str) -> Told | None:
    """The parts of the first fault in a text that ``told`` wrote; None for another text."""
    found = _TOLD.fullmatch(text)
    return Told(**found.groupdict()) if found else None


def failure(artefact: Path) -> str:
    """What is wrong with the kernels' code, in a line; otherwise empty."""
    return "; ".join(of_launches(bounded_reading.data_of(artefact)["launches"], wrong=True))


def warnings(artefact: Path) -> list[str]:
    """What the kernels' code probably does not mean to do, a line each."""
    return list(of_launches(bounded_reading.data_of(artefact)["launches"], wrong=False))


def of_launches(launches: Iterable[Mapping[str, Any]], *, wrong: bool) -> Iterator[str]:
    """Yields each distinct fault of an artefact's launches that is ``wrong``, or a warning, in a line."""
    faults = ((launch["function"], Fault(**one)) for launch in launches for one in launch.get("faults", ()))
    yield from dict.fromkeys(fault.told(function) for function, fault in faults if fault.wrong == wrong)
