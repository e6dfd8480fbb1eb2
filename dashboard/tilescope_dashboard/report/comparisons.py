"""Comparison of two sides in a report. Pure: two sides -> content."""

from __future__ import annotations

import math
from functools import partial

import pandas as pd
from tilescope.models import compare as model
from tilescope.models import verdicts
from tilescope.models.compare import CompareError, Side

from tilescope_dashboard.data.units import ABSENT, times
from tilescope_dashboard.figures.compare import MOST, compare
from tilescope_dashboard.report.content import Comparison, Part, Table
from tilescope_dashboard.topics.compare import CHANGES, RESOURCES

_SAID = "Worst first; a bar is the 95 % interval of the ratio of medians."


def comparison(base: Side, other: Side, kernel: str = "") -> Comparison:
    """``other`` compared with ``base``; an implementation of ``other`` against the base's own, or against its ``triton``."""
    if other.impl and not base.impl:
        base = Side(base.loaded, "triton")
    obstacles = model.obstacles(base, other)
    try:
        rows = model.compare(base, other, kernel)
    except CompareError as error:
        return Comparison(base.name, other.name, "nothing to compare", (f"{error}.",), (), None)
    rows = rows.assign(interval=[_interval(*ends) for ends in zip(rows["ratio_low"], rows["ratio_high"], strict=True)])
    drawn = int(rows["ratio"].notna().sum())
    part = Part(
        title="Cases",
        text=_SAID + (f" The figure shows {MOST} of {drawn}." if drawn > MOST else "") if drawn else "",
        drawings=(partial(compare, rows),) if drawn else (),
        table=Table(rows, (*CHANGES, *RESOURCES)),
        wide=True,
    )
    return Comparison(
        base=base.name,
        other=other.name,
        verdict=verdicts.sentence(rows, other.name, base.name, of_base=False),
        obstacles=tuple(f"No times are compared: {line}." for line in obstacles),
        changes=tuple(model.changes(base, other)),
        part=part,
    )


def _interval(low: float, high: float) -> str:
    """``0.981× to 1.02×``; open where one side has a single repetition."""
    if pd.isna(low):
        return ABSENT
    return "no estimate" if math.isinf(high) else f"{times(low)} to {times(high)}"
