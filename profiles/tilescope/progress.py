"""What of a run is done, written beside its parts: all that it takes to go on with one that was interrupted."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tilescope.case import Case

FILE = "progress.jsonl"


@dataclass(frozen=True)
class Settled:
    """A case, by id, that needs no more of a collector, and why: ``result``, ``error`` or ``skipped``."""

    collector: str
    case: str
    event: str
    message: str = ""


@dataclass(frozen=True)
class Progress:
    """The cases that a run is of, in order, and what was settled of them."""

    cases: tuple[Case, ...]
    settled: tuple[Settled, ...]


def begin(folder: Path, cases: Iterable[Case]) -> None:
    """Notes what is to be done by the run that is written in ``folder``."""
    _append(folder, {"cases": [case.to_json() for case in cases]})


def settle(folder: Path, settled: Settled) -> None:
    """Notes one thing that is done; it is on disk when this returns."""
    _append(folder, asdict(settled))


def kept(folder: Path) -> bool:
    """Whether the run in ``folder`` says what it takes to go on with it."""
    return (folder / FILE).is_file()


def read(folder: Path) -> Progress | None:
    """What was noted; None where nothing was. A line that its writer did not live to finish is left out."""
    try:
        text = (folder / FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    lines = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            lines.append(json.loads(line))
    if not lines or "cases" not in lines[0]:
        return None
    return Progress(tuple(Case(**case) for case in lines[0]["cases"]), tuple(Settled(**line) for line in lines[1:]))


def _append(folder: Path, line: object) -> None:
    # Its end of line comes first: after one that was not finished, this one is a line of its own.
    with (folder / FILE).open("a", encoding="utf-8") as file:
        file.write("\n" + json.dumps(line, ensure_ascii=False))
