"""Compares the launches of today's code with those of a recording, for kernels whose code has changed since.

A problem is the same if its GPU functions have the same text and its launches are equal: functions in order, grid, threads,
registers, shared memory. The recording's launches are from the profiler, today's from the compiler. A problem with an autotuner
or with PyTorch's launches never counts as the same, because these are not known without a GPU. Imports neither torch nor triton.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tilescope.collectors import compiler
from tilescope.jobs import supervisor
from tilescope.jobs.job import Job, OnEvent
from tilescope.runs import artefacts, gpu_code, same_launches, staleness, store
from tilescope.runs.same_launches import Problem
from tilescope.table.case import Case

#: Values of a launch that are compared, beside its function.
_FIGURES = ("grid_blocks", "block_threads", "registers", "shared_memory")
#: The source of a recording's launches.
_SEEN_BY = "torch_profiler"
#: The most cases of a problem that are compiled: a larger sweep would take as long as recording it again.
_MOST_CASES = 32
Launches = list[tuple[Any, ...]]


async def same_problems(
    runs: Iterable[store.LoadedRun], on_event: OnEvent = lambda event: None
) -> dict[tuple[str, str, str], set[Problem]]:
    """The problems of stale kernels in these runs that today's code launches in the same way, for ``same_launches.keep``.

    Kept answers are not computed again.
    """
    found: dict[tuple[str, str, str], set[Problem]] = {}
    asked: dict[tuple[str, str, str, str], dict[Problem, dict[Case, Launches]]] = {}
    for run in runs:
        for kernel in staleness.stale_kernels(run):
            file = str(run.run.kernels[kernel].get("file", ""))
            key = run.run.id, kernel, same_launches.code(file)
            if same_launches.is_kept(*key):
                found[key] = same_launches.known(run.run.id, {kernel: file})
            else:
                asked[run.run.device.target, *key] = _candidates(run, kernel)
    made: dict[tuple[str, Case], Launches] = {}
    for target in dict.fromkeys(target for target, *_ in asked):
        cases = [
            case for at, problems in asked.items() if at[0] == target for then in problems.values() for case in then
        ]
        launched = await _launches_today(target, list(dict.fromkeys(cases)), on_event) if cases else {}
        made |= {(target, case): launches for case, launches in launched.items()}
    for (target, run_id, kernel, code), problems in asked.items():
        found[run_id, kernel, code] = {
            problem
            for problem, cases in problems.items()
            if all(made.get((target, case)) == then for case, then in cases.items())
        }
    return found


def _candidates(run: store.LoadedRun, kernel: str) -> dict[Problem, dict[Case, Launches]]:
    """The problems with unchanged GPU functions, with the recorded launches of each case that has its own ones."""
    try:
        sides = staleness.sides(run, kernel)
        if sides is None:
            return {}
        every, same = gpu_code.functions(sides.recorded), gpu_code.unchanged(*sides)
    except staleness.UNREADABLE:
        return {}
    of_kernel = run.table[(run.table["kernel"] == kernel) & run.table["launch"].notna()]
    found: dict[Problem, dict[Case, Launches]] = {}
    for (direction, workload), rows in of_kernel.groupby(["pass", "workload"]):
        own = rows[rows["function"].isin(every)]
        cases = {
            Case(kernel, *key): _launches(rows, *key)
            for key in own[["impl", "pass", "workload", "config"]].drop_duplicates().itertuples(index=False, name=None)
        }
        if 0 < len(cases) <= _MOST_CASES and all(
            launches and {function for function, *_ in launches} <= same for launches in cases.values()
        ):
            found[Problem(kernel, direction, workload)] = cases
    return found


def _launches(rows: pd.DataFrame, impl: str, direction: str, workload: str, config: str) -> Launches:
    """A case's recorded launches, in order."""
    of_case = rows[(rows["impl"] == impl) & (rows["config"] == config) & (rows["source"] == _SEEN_BY)]
    values = of_case.groupby(["launch", "function", "metric"])["value"].median().unstack("metric")
    return [
        _launch(str(function), dict(zip(values.columns, row, strict=True)))
        for (_, function), row in zip(values.index, values.to_numpy(), strict=True)
    ]


async def _launches_today(target: str, cases: list[Case], on_event: OnEvent) -> dict[Case, Launches]:
    """Today's launches of each case, except cases with an autotuner or with PyTorch's launches."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="tilescope-launches-") as scratch:
        settings = {"target": target, "measure_ceilings": False}
        folder = await supervisor.run(Job(cases, ("compiler",), settings, Path(scratch)), on_event)
        for case in cases:
            artefact = artefacts.find(folder, "compiler", case)
            data = compiler.load(artefact) if artefact else {}
            launches = data.get("launches", ())
            if launches and not data["operators"] and not any(map(_is_open, launches)):
                found[case] = [_launch(launch["function"], launch) for launch in launches]
    return found


def _is_open(launch: Mapping[str, Any]) -> bool:
    """Whether a launch is not fully known: an autotuner chooses, or another GPU function is an argument."""
    return bool(launch["config"]) or any("JITFunction(" in str(value) for value in launch["constants"].values())


def _launch(function: str, figures: Mapping[str, Any]) -> tuple[Any, ...]:
    """The compared values. An unknown one is NaN, which equals nothing. Registers are allocated in eights."""
    known = {name: float(figures.get(name, math.nan)) for name in _FIGURES}
    return function, *({**known, "registers": np.ceil(known["registers"] / 8)}.values())
