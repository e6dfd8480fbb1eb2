"""The collectors, cheapest first. Each is a module that captures artefacts and parses them.

A collector of the library has a line in ``tilescope.table.sources``, and its name is the source of its rows. A user's own is named by
its dotted path; its rows have the source of the most similar collector. A collector module has

``unavailable() -> str | None``
    Why it cannot run on this machine and what to do; None where it can. Imports no torch.
``capture(case, spec, out, settings) -> None``
    Runs in the worker. Writes the artefact ``out``. Only those of ``jobs.job.IN_TURN`` share a process with other collectors.
``parse(artefact, case) -> DataFrame``
    Converts the artefact to rows of the schema (with an empty ``run_id``). Pure; imports neither torch nor triton at module level.
``SUFFIX``
    The artefact's file suffix.

and may have

``capture_all(cases, load, folder, settings, begin)``
    Stands in place of ``capture`` where cases must be captured together. Yields each case when it is settled, with its exception or None.
``failure(artefact) -> str``, ``remark(artefact) -> str``
    Why a case failed although its artefact has rows; a remark on a case for the run's notes. Empty for none.
``warnings(artefact) -> list[str]``
    What the case's code probably does not mean to do, a line each (``tilescope.table.kernel_faults``).
``parse_lines(artefact, case) -> (DataFrame, dict)``
    Values of source lines (``tilescope.table.line_values``), and the texts of the source files by name.
``command(argv, folder) -> list[str]``, ``environment() -> dict``
    The worker's command line with a wrapper; variables of the worker's process.
``explain(log) -> str | None``
    Why a worker failed, with the cure, from the end of its log; None where the log does not show it.
``finish(folder, cases) -> None``
    Runs after the worker: converts the wrapper's output to one artefact for each case.

A collector that runs Triton kernels also writes their configs beside its artefact (``tilescope.table.launch_configs``).
"""

from __future__ import annotations

import importlib
from types import ModuleType

from tilescope.table import sources

#: Names of the collectors, in the order they run.
COLLECTORS = tuple(collector.name for collector in sources.COLLECTORS)
#: Names of those that ``auto`` leaves out.
OPTIONAL = tuple(collector.name for collector in sources.OPTIONAL)


def load(name: str) -> ModuleType:
    """The collector module ``name``: one of the library, or a user's own by its dotted path. Raises ValueError for an unknown name."""
    if "." in name:
        return importlib.import_module(name)
    if name not in sources.KNOWN:
        raise ValueError(f"unknown collector {name!r}: use one of {', '.join(sources.KNOWN)}, or auto")
    module = sources.KNOWN[name].module or name
    return importlib.import_module(module if module.startswith("tilescope.") else f"tilescope.collectors.{module}")
