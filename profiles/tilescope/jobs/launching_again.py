"""Whether today's code launches on a GPU what a recording measured: the same GPU functions, the same code of them.

Of kernels whose code has changed since, problem by problem. GPU functions are compared by their text, launches by what a profiler
saw of those that were measured and what the compiler makes of today's: functions in order, grid, threads, registers, shared
memory. What an autotuner chooses is not known without a GPU, nor what PyTorch launches: such problems are not told to be the same.
Imports neither torch nor triton.
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

#: What is compared of a launch, beside its function. A thread gets registers in eights.
_FIGURES = ("grid_blocks", "block_threads", "registers", "shared_memory")
#: The source that says of a measured launch what it was.
_SEEN_BY = "torch_profiler"
#: Cases of a problem that are compiled: of a larger sweep that would take as long as to record it.
_MOST_CASES = 32
Launches = list[tuple[Any, ...]]


async def same_problems(
    runs: Iterable[store.LoadedRun], on_event: OnEvent = lambda event: None
) -> dict[tuple[str, str, str], set[Problem]]:
    """The problems that today's code hands to the GPU as these runs did, of kernels that are stale, as ``same_launches.keep``
    takes them. What is kept already is not asked again.
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
    """Problems all of whose GPU functions are what they were, with the launches of each implementation that has any."""
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
    """A case's launches as the profiler saw them, in order."""
    of_case = rows[(rows["impl"] == impl) & (rows["config"] == config) & (rows["source"] == _SEEN_BY)]
    values = of_case.groupby(["launch", "function", "metric"])["value"].median().unstack("metric")
    return [
        _launch(str(function), dict(zip(values.columns, row, strict=True)))
        for (_, function), row in zip(values.index, values.to_numpy(), strict=True)
    ]


async def _launches_today(target: str, cases: list[Case], on_event: OnEvent) -> dict[Case, Launches]:
    """What each case launches today; nothing of those that an autotuner, or PyTorch, has a part in."""
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
    """Whether what is launched is not all said: an autotuner chooses, or the GPU function is given another one."""
    return bool(launch["config"]) or any("JITFunction(" in str(value) for value in launch["constants"].values())


def _launch(function: str, figures: Mapping[str, Any]) -> tuple[Any, ...]:
    """What is compared. What is not known of a launch is like nothing."""
    known = {name: float(figures.get(name, math.nan)) for name in _FIGURES}
    return function, *({**known, "registers": np.ceil(known["registers"] / 8)}.values())
