"""The ladder of collectors, cheapest first: each is one module that captures artefacts and parses them.

One of the library has a line in ``tilescope.table.sources``, whose name its rows give as their source. A person's own is named
by its dotted path, and its rows give the source of the table that they are most like. A collector module has:

``unavailable() -> str | None``
    Why it cannot run on this machine, in words a person can act on; None when it can. Imports no torch.
``capture(case, spec, out, settings) -> None``
    Runs in the worker, in a process that belongs to this collector alone. Writes the artefact ``out``.
``parse(artefact, case) -> DataFrame``
    Pure: the artefact to rows of the schema (``run_id`` left empty). Imports neither torch nor triton at module level.
``SUFFIX``
    The artefact's file suffix.

and may have:

``capture_all(cases, load, folder, settings, begin)``
    In the place of ``capture``, for cases that are only worth something together. Yields each when it is settled, with the
    exception it failed with.
``failure(artefact) -> str``, ``remark(artefact) -> str``
    Why a case has failed although its artefact has rows; a remark on a case for the run's notes. Empty for none.
``parse_lines(artefact, case) -> (DataFrame, dict)``
    Values of single source lines (``tilescope.table.line_values``), and the text of the source files by name.
``command(argv, folder) -> list[str]``, ``environment() -> dict``
    The worker's command line, wrapped; variables for the worker's process.
``finish(folder, cases) -> None``
    Runs after the worker ended: turns what the wrapper wrote into one artefact a case.

One that runs Triton kernels also notes their configs beside its artefact (``tilescope.table.launch_configs``).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast

import pandas as pd

from tilescope.table import sources
from tilescope.table.case import Case

#: Names, in the order they run.
COLLECTORS = tuple(collector.name for collector in sources.COLLECTORS)
#: Run only when they are named: ``auto`` leaves them out.
OPTIONAL = tuple(collector.name for collector in sources.OPTIONAL)


class Collector(Protocol):
    """What every collector module provides."""

    SUFFIX: str

    def unavailable(self) -> str | None: ...

    def capture(self, case: Case, spec: Any, out: Path, settings: Mapping[str, Any]) -> None: ...

    def parse(self, artefact: Path, case: Case) -> pd.DataFrame: ...


def load(name: str) -> ModuleType:
    """The collector module called ``name``: one of ours, or the dotted path of a person's own module.

    Raises ValueError naming the known ones.
    """
    if "." in name:
        return importlib.import_module(name)
    if name not in sources.KNOWN:
        raise ValueError(f"unknown collector {name!r}: use one of {', '.join(sources.KNOWN)}, or auto")
    module = sources.KNOWN[name].module or name
    return importlib.import_module(module if module.startswith("tilescope.") else f"tilescope.collectors.{module}")


def collector(name: str) -> Collector:
    """The same, seen through its protocol."""
    return cast(Collector, load(name))
