"""Checks of an address's values. Anyone can write an address, so it opens runs in the folders of runs and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from tilescope.runs import store

from tilescope_dashboard.data.units import short

#: Characters that lead to another folder or that no screen shows.
_NO_NAME = re.compile(r"[/\\\x00-\x1f\x7f]")
#: Most characters of a file's name, of a kernel's (C++ templates have hundreds), and of a text shown in a line.
_LONGEST, _LONGEST_KERNEL, _SHOWN = 255, 2000, 60


def run_folder(text: str) -> Path:
    """The folder of the run with this id, or with an id that begins so. Raises StoreError, in one line, otherwise.

    Commands such as ``tilescope report`` take paths as well, as who runs them may read those anyway.
    """
    if len(text) > _LONGEST or _NO_NAME.search(text):
        raise store.StoreError(f"{shown(text)} is not a run's id: choose one of the runs above")
    found = store.find(text)
    homes = {folder.resolve() for folder in (store.runs_dir(), store.recorded_dir())}
    if found.resolve().parent not in homes:
        raise store.StoreError(f"run {shown(text)} lies outside of the folder of runs: copy it there to open it")
    return found


def is_kernel(text: str) -> bool:
    """Whether this could be a kernel's name. The page shows it in many places."""
    return len(text) <= _LONGEST_KERNEL and text.isprintable()


def unopened(compared: Iterable[str]) -> list[str]:
    """A line for each of the runs, or ``RUN:IMPLEMENTATION``, that cannot be found, with the reason."""
    said = []
    for token in compared:
        try:
            run_folder(token.partition(":")[0])
        except (store.StoreError, OSError) as error:
            said.append(f"not compared: {error}")
    return said


def parts(token: str) -> tuple[str, str, str]:
    """Run, implementation and kernel of what is compared; the latter two are empty where it names none."""
    run, impl, kernel, *_ = [*token.split(":", 2), "", ""]
    return run, impl, kernel


def moved(token: str, before: str, run: str) -> str:
    """Change ``RUN:IMPLEMENTATION`` of the run ``before`` to ``run``'s; return any other token unchanged."""
    name, colon, impl = token.partition(":")
    return f"{run}:{impl}" if before and colon and name == before else token


def asked(search: str, names: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """The values of these ``names`` in a query, with its question mark, and a list of ``NAME=VALUE`` that is not understood.

    ``compared`` is a list of texts in JSON, or one text, a list of one; everything else is a text. Panel would make numbers of texts
    that look like some.
    """
    given = {name: text for name, text in parse_qsl(search.removeprefix("?")) if name in names}
    values = {name: _several(text) if name == "compared" else text for name, text in given.items()}
    good = {name: value for name, value in values.items() if value is not None}
    return good, [f"{name}={shown(text)}" for name, text in given.items() if name not in good]


def _several(text: str) -> list[str] | None:
    if not text.startswith("["):
        return [text]
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if all(isinstance(one, str) for one in found) else None


def shown(text: str) -> str:
    """The text in quotes, shortened to ``_SHOWN`` characters."""
    return repr(short(text, _SHOWN))


def leads_out(folder: Path) -> Path | None:
    """The first symbolic link in or below the folder that leads out of it; None without one."""
    home = folder.resolve()
    links = (path for path in sorted(folder.rglob("*")) if path.is_symlink())
    return next((path for path in links if not path.resolve().is_relative_to(home)), None)
