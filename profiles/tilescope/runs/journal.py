"""The journal of a run that is being written: its cases, and what is done of them. An interrupted run goes on by it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilescope.files import atomic_writing, bounded_reading, json_shape
from tilescope.table.case import Case

FILE = "progress.jsonl"
#: Event of a result that was on the disk and is not any more: it takes back what was settled before.
LOST = "lost"
#: Bytes of the journal.
_LARGEST = 256 * bounded_reading.MIB


@dataclass(frozen=True)
class Settled:
    """A case, by id, that needs no more of a collector, and why: ``result``, ``error`` or ``skipped``. ``lost`` takes
    it back.
    """

    collector: str
    case: str
    event: str
    message: str = ""


@dataclass(frozen=True)
class Journal:
    """The cases of a run, in order, and what was settled of them."""

    cases: tuple[Case, ...]
    settled: tuple[Settled, ...]


def begin(folder: Path, cases: Iterable[Case]) -> None:
    """Begins the journal of the run that is written in ``folder``."""
    _append(folder, {"cases": [case.to_json() for case in cases]})


def settle(folder: Path, settled: Settled) -> None:
    """Adds one entry; it is on disk when this returns."""
    _append(folder, asdict(settled))


def kept(folder: Path) -> bool:
    """Whether the run in ``folder`` has a journal to go on by."""
    return bounded_reading.is_inside(folder / FILE, folder)


def read(folder: Path) -> Journal | None:
    """The journal; None where there is none. Unfinished and damaged lines are left out.

    Raises Unreadable where it is not an ordinary file.
    """
    try:
        raw = bounded_reading.content(folder / FILE, folder, _LARGEST)
    except FileNotFoundError:
        return None
    # Not by what ends a line of text: a message may hold such a character.
    lines = [value for line in raw.split(b"\n") if (value := _value(line)) is not None]
    try:
        cases: tuple[Case, ...] = json_shape.fit(lines[0]["cases"], tuple[Case, ...], "cases")
    except (LookupError, TypeError, ValueError):
        return None
    settled: dict[tuple[str, str], Settled] = {}
    for line in lines[1:]:
        try:
            done: Settled = json_shape.fit(line, Settled, "")
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


def _append(folder: Path, line: object) -> None:
    # Its end of line comes first: after one that was not finished, this one is a line of its own.
    atomic_writing.append(folder / FILE, "\n" + json.dumps(line))
