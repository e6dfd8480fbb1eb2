"""The journal of a run that is being written: its cases, and which of them are settled. ``resume`` reads it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilescope.files import bounded_reading, json_shape
from tilescope.table.case import Case

FILE = "progress.jsonl"
#: Event of a result that is no longer on the disk, or of a case that is tried again. It revokes the earlier entry of the case.
LOST = "lost"
#: Event of a case that a limit of the run left out.
LIMITED = "limited"
#: Most bytes of the journal.
_LARGEST = 256 * bounded_reading.MIB


@dataclass(frozen=True)
class Settled:
    """A case, by id, that a collector is done with. ``event`` is ``result``, ``error``, ``skipped``, ``limited`` or ``lost``."""

    collector: str
    case: str
    event: str
    message: str = ""


@dataclass(frozen=True)
class Journal:
    """The cases of a run, in order, and its settled entries."""

    cases: tuple[Case, ...]
    settled: tuple[Settled, ...]


def begin(folder: Path, cases: Iterable[Case]) -> None:
    """Begins the journal of the run that is written in ``folder``."""
    _append(folder, {"cases": [case.to_json() for case in cases]})


def settle(folder: Path, *settled: Settled) -> None:
    _append(folder, *map(asdict, settled))


def kept(folder: Path) -> bool:
    return bounded_reading.is_inside(folder / FILE, folder)


def read(folder: Path) -> Journal | None:
    """Reads the journal; None where there is none. Damaged lines are skipped.

    Raises Unreadable where it is not an ordinary file.
    """
    try:
        raw = bounded_reading.content(folder / FILE, folder, _LARGEST)
    except FileNotFoundError:
        return None
    # Not splitlines: a message may hold another character that ends a line.
    lines = [value for line in raw.split(b"\n") if (value := _value(line)) is not None]
    try:
        cases = json_shape.fit(lines[0]["cases"], tuple[Case, ...], "cases")
    except (LookupError, TypeError, ValueError):
        return None
    settled: dict[tuple[str, str], Settled] = {}
    for line in lines[1:]:
        try:
            done = json_shape.fit(line, Settled, "")
        except ValueError:
            continue
        if done.event == LOST:
            settled.pop((done.collector, done.case), None)
        else:
            settled.setdefault((done.collector, done.case), done)
    return Journal(cases, tuple(settled.values()))


def _value(line: bytes) -> Any:
    try:
        return bounded_reading.data(line) if line.strip() else None
    except bounded_reading.Unreadable:
        return None


def _append(folder: Path, *lines: object) -> None:
    # The line break comes first, so that no entry continues an unfinished one.
    text = "".join(f"\n{json.dumps(json_shape.storable(line))}" for line in lines)
    with (folder / FILE).open("a", encoding="utf-8") as file:
        file.write(text)
