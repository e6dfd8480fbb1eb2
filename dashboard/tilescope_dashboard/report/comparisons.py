"""Comparison of two sides in a report. Pure: two sides -> content."""

from __future__ import annotations

import math
from functools import partial

import pandas as pd
from tilescope.models import compare as model
from tilescope.models import verdicts
from tilescope.models.compare import CompareError, Side
from tilescope.models.repetitions import doubts

from tilescope_dashboard.data.units import ABSENT, times
from tilescope_dashboard.figures.compare import MOST, compare
from tilescope_dashboard.report.content import Comparison, Part, Table
from tilescope_dashboard.topics.compare import CHANGES, RESOURCES

_SAID = "Slowest candidate first; a bar is the 95 % interval of the speedup."


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
