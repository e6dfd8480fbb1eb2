"""Compares the launches of today's code with those of a recording, for kernels whose code has changed since.

A problem is the same if its GPU functions have the same text and its launches are equal: functions in order, grid, threads,
registers, shared memory. The recording's launches are from the profiler, today's from the compiler. It is also the same if the
code that was recorded, taken out of git, makes the recorded launches and is compiled to what today's is (``recompiled``). A problem
with an autotuner or with PyTorch's launches never counts as the same, because these are not known without a GPU.

A recording keeps the files that launch something. Where all those are unchanged, rules in others may still have a problem launched
otherwise: a problem of which that is known has changed. Imports neither torch nor triton.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tilescope.collectors import compiler
from tilescope.jobs import recompiled, supervisor
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


class Key(NamedTuple):
    """A kernel of a recording: architecture, the run's id, the kernel, and the digest of its code today."""

    target: str
    run: str
    kernel: str
    code: str


class Candidate(NamedTuple):
    """A problem that may be solved in the same way: recorded launches by case, and whether their functions have the same texts."""

    cases: Mapping[Case, Launches]
    same_texts: bool


async def same_problems(
    runs: Iterable[store.LoadedRun], on_event: OnEvent = lambda event: None
) -> dict[tuple[str, str, str], set[Problem]]:
    """The problems of stale kernels in these runs that today's code launches in the same way, for ``same_launches.keep``.

    Kept answers are not computed again.
    """
    found: dict[tuple[str, str, str], set[Problem]] = {}
    asked: dict[Key, dict[Problem, Candidate]] = {}
    trees: dict[Key, tuple[str, Path] | None] = {}
    for run in runs:
        for kernel in staleness.stale_by_text(run):
            key = _key(run, kernel)
            if same_launches.is_kept(*key[1:]):
                found[key[1:]] = same_launches.known(run.run.id, {kernel: _file(run, kernel)})
            else:
                asked[key] = _candidates(run, kernel)
                trees[key] = recompiled.tree_of(run, kernel) if asked[key] else None
                found[key[1:]] = set()
    for key, same in (await _with_the_same_texts(asked, on_event)).items():
        found[key[1:]] |= same
    left = {
        key: {problem: one for problem, one in problems.items() if problem not in found[key[1:]]}
        for key, problems in asked.items()
        if trees[key]
    }
    same_code = await _by_compiled_code(left, trees, lambda recorded: recompiled.same_cases(recorded, on_event), all)
    for key, same in same_code.items():
        found[key[1:]] |= same
    return found


async def other_problems(
    runs: Iterable[store.LoadedRun], on_event: OnEvent = lambda event: None
) -> dict[tuple[str, str, str], set[Problem]]:
    """The problems of other kernels in these runs, not stale by what was kept, that today's code is known to launch otherwise.

    Kept answers are not computed again.
    """
    found: dict[tuple[str, str, str], set[Problem]] = {}
    asked: dict[Key, dict[Problem, Candidate]] = {}
    trees: dict[Key, tuple[str, Path] | None] = {}
    for run in runs:
        for kernel in sorted(run.run.kernels.keys() - set(staleness.stale_by_text(run))):
            key = _key(run, kernel)
            if same_launches.is_kept(*key[1:]):
                found[key[1:]] = same_launches.others(run.run.id, {kernel: _file(run, kernel)})
            elif tree := recompiled.tree_of(run, kernel):
                asked[key], trees[key], found[key[1:]] = _candidates(run, kernel), tree, set()
    changed = await _by_compiled_code(asked, trees, lambda recorded: recompiled.other_cases(recorded, on_event), any)
    for key, problems in changed.items():
        found[key[1:]] |= problems
    return found


def _file(run: store.LoadedRun, kernel: str) -> str:
    return str(run.run.kernels[kernel].get("file", ""))


def _key(run: store.LoadedRun, kernel: str) -> Key:
    return Key(run.run.device.target, run.run.id, kernel, same_launches.code(_file(run, kernel)))


async def _with_the_same_texts(
    asked: Mapping[Key, Mapping[Problem, Candidate]], on_event: OnEvent
) -> dict[Key, set[Problem]]:
    """The problems whose GPU functions have the same texts, and whose launches are the recorded ones today."""
    made: dict[tuple[str, Case], Launches] = {}
    for target in dict.fromkeys(key.target for key in asked):
        cases = [
            case
            for key, problems in asked.items()
            for one in problems.values()
            for case in one.cases
            if key.target == target and one.same_texts
        ]
        launched = await _launches_today(target, list(dict.fromkeys(cases)), on_event) if cases else {}
        made |= {(target, case): launches for case, launches in launched.items()}
    return {
        key: {
            problem
            for problem, one in problems.items()
            if one.same_texts and all(made.get((key.target, case)) == then for case, then in one.cases.items())
        }
        for key, problems in asked.items()
    }


async def _by_compiled_code(
    asked: Mapping[Key, Mapping[Problem, Candidate]],
    trees: Mapping[Key, tuple[str, Path] | None],
    compare: Callable[
        [Mapping[recompiled.Wanted, Sequence[str]]], Awaitable[Mapping[recompiled.Wanted, recompiled.Compiled]]
    ],
    of_cases: Callable[[Iterable[bool]], bool],
) -> dict[Key, set[Problem]]:
    """The problems with all or any (``of_cases``) of their cases among those that ``compare`` gives and whose recorded code makes the
    recorded launches.
    """
    wanted = {
        (key, case): (recompiled.Wanted(key.target, *tree, case), then)
        for key, problems in asked.items()
        if (tree := trees[key])
        for one in problems.values()
        for case, then in one.cases.items()
    }
    functions = {one: [function for function, *_ in then] for one, then in wanted.values()}
    compared = await compare(functions)

    def is_found(key: Key, case: Case) -> bool:
        one, then = wanted[key, case]
        return [_launch(made["function"], made["figures"]) for made in compared.get(one) or ()] == then

    return {
        key: {problem for problem, one in problems.items() if of_cases(is_found(key, case) for case in one.cases)}
        for key, problems in asked.items()
    }


def _candidates(run: store.LoadedRun, kernel: str) -> dict[Problem, Candidate]:
    """The problems that only GPU functions of the recorded files solve; none where anything else of the kernel has changed."""
    try:
        sides = staleness.sides(run, kernel)
        if sides is None or not gpu_code.same_beside(*sides):
            return {}
        every, same = gpu_code.functions(sides.recorded), gpu_code.unchanged(*sides)
    except staleness.UNREADABLE:
        return {}
    of_kernel = run.table[(run.table["kernel"] == kernel) & run.table["launch"].notna()]
    found: dict[Problem, Candidate] = {}
    for (direction, workload), rows in of_kernel.groupby(["pass", "workload"]):
        own = rows[rows["function"].isin(every)]
        cases = {
            Case(kernel, *key): _launches(rows, *key)
            for key in own[["impl", "pass", "workload", "config"]].drop_duplicates().itertuples(index=False, name=None)
        }
        launched = [{function for function, *_ in launches} for launches in cases.values()]
        if 0 < len(cases) <= _MOST_CASES and all(functions and functions <= every for functions in launched):
            same_texts = all(functions <= same for functions in launched)
            found[Problem(kernel, direction, workload)] = Candidate(cases, same_texts)
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
