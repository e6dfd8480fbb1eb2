"""The report of one run or of several. Pure: sides -> content."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import pandas as pd
from tilescope.models import compare as model
from tilescope.models import verdicts
from tilescope.models.compare import CompareError, Side, doubts
from tilescope.runs.store import LoadedRun
from tilescope.table.run import Run
from tilescope.table.suggest import unknown

from tilescope_dashboard.data.units import ABSENT, times
from tilescope_dashboard.figures.compare import MOST, compare
from tilescope_dashboard.report.content import Comparison, Part, Report, Table
from tilescope_dashboard.report.runs import run_part
from tilescope_dashboard.topics.compare import CHANGES, RESOURCES

_SAID = "Slowest candidate first; a bar is the 95 % interval of the speedup."


def build(sides: Sequence[Side], kernel: str = "") -> Report:
    """The first side against each other, then each run. ``kernel`` empty is every kernel.

    Raises ValueError for a kernel that none of the runs has, and for sides that cannot be compared with each other.
    """
    base, *others = sides
    runs = _runs(sides, kernel)
    for other in others:
        _opposed(base, other)
    return Report(
        title=_title(sides, [loaded.run for loaded in runs.values()]),
        comparisons=tuple(comparison(base, other, kernel) for other in others),
        runs=tuple(run_part(loaded, kernel) for loaded in runs.values()),
    )


def _opposed(base: Side, other: Side) -> None:
    if base.impl and not other.impl:
        raise ValueError(
            f"{base.name} is one implementation: name one of {other.name} too, such as {other.name}:triton"
        )
    if base.loaded.run.id == other.loaded.run.id and other.impl == (base.impl or "triton"):
        raise ValueError(f"{other.name} would be compared with itself: name another implementation")


def _title(sides: Sequence[Side], runs: Sequence[Run]) -> str:
    """``norms``, ``norms: compile against triton``, or ``norms (eeee) against norms (db50)``."""
    titles = [run.title or run.id for run in runs]
    base, *others = sides
    if len(runs) == 1 and others:
        return f"{titles[0]}: {', '.join(side.impl for side in others)} against {base.impl or 'triton'}"
    if len(set(titles)) < len(titles):
        titles = [f"{title} ({run.id[-4:]})" for title, run in zip(titles, runs, strict=True)]
    first, *rest = titles
    return f"{', '.join(rest)} against {first}" if rest else first


def table(sides: Sequence[Side], kernel: str = "") -> pd.DataFrame:
    """The tidy table (``tilescope.table.schema``) of every run, one after the other. Raises ValueError as ``build`` does."""
    rows = pd.concat([loaded.table for loaded in _runs(sides, kernel).values()])
    return rows[rows["kernel"].eq(kernel) | (kernel == "")].reset_index(drop=True)


def _runs(sides: Sequence[Side], kernel: str) -> dict[str, LoadedRun]:
    """Each run once. Raises ValueError for a kernel that none of them has."""
    runs = {side.loaded.run.id: side.loaded for side in sides}
    known = dict.fromkeys(name for loaded in runs.values() for name in loaded.run.kernels)
    if kernel and kernel not in known:
        raise ValueError(f"{unknown('kernel', kernel, known)} in {', '.join(runs)}")
    return runs


def comparison(baseline: Side, candidate: Side, kernel: str = "") -> Comparison:
    """The candidate compared with the baseline. A candidate that is one implementation is compared with ``triton`` by default."""
    if candidate.impl and not baseline.impl:
        baseline = Side(baseline.loaded, "triton")
    obstacles = model.obstacles(baseline, candidate)
    try:
        rows = model.compare(baseline, candidate, kernel)
    except CompareError as error:
        return Comparison(baseline.name, candidate.name, "nothing to compare", (f"{error}.",), (), None)
    rows = rows.assign(
        interval=[_interval(*ends) for ends in zip(rows["speedup_low"], rows["speedup_high"], strict=True)]
    )
    drawn = int(rows["speedup"].notna().sum())
    part = Part(
        title="Cases",
        text=_SAID + (f" The figure shows {MOST} of {drawn}." if drawn > MOST else "") if drawn else "",
        drawings=(partial(compare, rows),) if drawn else (),
        table=Table(rows, (*CHANGES, *RESOURCES)),
        wide=True,
    )
    return Comparison(
        baseline=baseline.name,
        candidate=candidate.name,
        verdict=verdicts.sentence(rows, candidate.name, baseline.name),
        obstacles=tuple(f"No times are compared: {line}." for line in obstacles),
        changes=(*doubts(baseline.loaded, candidate.loaded, rows), *model.changes(baseline, candidate)),
        part=part,
    )


def _interval(low: float, high: float) -> str:
    """``0.981× to 1.02×``; open where one side has a single repetition."""
    if pd.isna(low):
        return ABSENT
    return "no estimate" if math.isinf(high) else f"{times(low)} to {times(high)}"
