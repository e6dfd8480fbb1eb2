"""Checks of what an address names. Anyone can write one, so it opens runs in the folders of runs and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tilescope.runs import store

from tilescope_dashboard.data.units import short

#: No folder's name, but a way to another folder, or what no screen shows.
_NO_NAME = re.compile(r"[/\\\x00-\x1f\x7f]")
#: Characters that a file's name can have, a kernel's (C++ templates have hundreds), and what a line shows of a text.
_LONGEST, _LONGEST_KERNEL, _SHOWN = 255, 2000, 60


def run_folder(text: str) -> Path:
    """The folder of the run whose id, or its unique start, this is. Raises StoreError, in a line, for everything else.

    ``tilescope report`` and its kind take paths as well, from whoever may read them anyway.
    """
    if len(text) > _LONGEST or _NO_NAME.search(text):
        raise store.StoreError(f"{shown(text)} is not a run's id: choose one of the runs above")
    found = store.find(text)
    homes = {folder.resolve() for folder in (store.runs_dir(), store.recorded_dir())}
    if found.resolve().parent not in homes:
        raise store.StoreError(f"run {shown(text)} lies outside of the folder of runs: copy it there to open it")
    return found


def is_kernel(text: str) -> bool:
    """Whether this could be a kernel's name, of the library or of a run: it is written all over the page."""
    return len(text) <= _LONGEST_KERNEL and text.isprintable()


def unopened(compared: Iterable[str]) -> list[str]:
    """Why some of the runs, or ``RUN:IMPLEMENTATION``, cannot be found, a line each."""
    said = []
    for token in compared:
        try:
            run_folder(token.partition(":")[0])
        except (store.StoreError, OSError) as error:
            said.append(f"not compared: {error}")
    return said


def moved(token: str, before: str, run: str) -> str:
    """``RUN:IMPLEMENTATION`` of the run ``before`` as that of ``run``; any other token as it is."""
    name, colon, impl = token.partition(":")
    return f"{run}:{impl}" if before and colon and name == before else token


def texts(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The values of the right type, a list of texts for ``compared`` and a text for all else; and the others as
    ``NAME=VALUE``."""
    good = {
        name: value for name, value in values.items()
        if (isinstance(value, list) and all(isinstance(item, str) for item in value) if name == "compared" else isinstance(value, str))
    }  # fmt: skip
    return good, [f"{name}={shown(str(value))}" for name, value in values.items() if name not in good]


def shown(text: str) -> str:
    """The text in quotes, in one line that is not too long to read."""
    return repr(short(text, _SHOWN))


def leads_out(folder: Path) -> Path | None:
    """The first link in the folder, or below, that leads out of it; None where all that is read lies in it."""
    home = folder.resolve()
    links = (path for path in sorted(folder.rglob("*")) if path.is_symlink())
    return next((path for path in links if not path.resolve().is_relative_to(home)), None)
