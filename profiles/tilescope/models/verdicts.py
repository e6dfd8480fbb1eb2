"""A comparison in one sentence or one number: which side is faster, by how much, and in how many of the cases. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from tilescope.models.compare import BASELINE_WRONG, WRONG

#: Below this a factor is written as a percentage.
_PERCENT = 1.1


def sentence(rows: pd.DataFrame, candidate: str, baseline: str) -> str:
    """``softmax is 6.12–11.4× faster than eager in all 12 cases``.

    ``rows`` are those of ``compare.compare``. Only significant differences count as faster or slower. Wrong cases of the candidate come
    first, those of the baseline last, and neither has a part in the rest.
    """
    wrong = rows["verdict"].isin([WRONG, BASELINE_WRONG])
    speeds = _speeds(rows[~wrong], candidate, baseline) if rows.empty or not wrong.all() else ""
    said = [_wrong(rows, candidate, WRONG), speeds, _wrong(rows, baseline, BASELINE_WRONG)]
    return "; ".join(filter(None, said))


def _wrong(rows: pd.DataFrame, side: str, verdict: str) -> str:
    """In how many cases a side is wrong, and the first fault; empty without any."""
    faults = rows.loc[rows["verdict"] == verdict, "fault"]
    cases = _all(len(rows)) if len(faults) == len(rows) else f"{len(faults)} of {len(rows)} cases"
    if faults.empty:
        return ""
    what, _, _ = faults.iloc[0].removeprefix("Wrong: ").rstrip(".").partition(". ")
    _, failed, why = what.partition(" failed: ")
    return f"{side} {'fails' if failed else 'is wrong'} in {cases}: {why or what}"


def _speeds(rows: pd.DataFrame, candidate: str, baseline: str) -> str:
    timed = rows[rows["speedup"].notna()]
    if timed.empty:
        why = "times cannot be compared" if rows["verdict"].eq("not comparable").any() else "no times to compare"
        return f"{candidate} against {baseline}: {'no case in common' if rows.empty else why}"
    speeds = timed["speedup"]
    faster, slower = speeds[timed["verdict"] == "faster"], 1 / speeds[timed["verdict"] == "slower"]
    alike = int((timed["verdict"] == "alike").sum())
    parts = [(f"{_range(faster)} faster than", faster.size), (f"{_range(slower)} slower than", slower.size)]
    parts = [part for part in parts if part[1]]
    if len(parts) + bool(alike) == 1:
        said = parts[0][0] if parts else "as fast as"
        return f"{candidate} is {said} {baseline} in {_all(len(timed))}{_missing(rows)}"
    first, *rest = [*parts, ("as fast as", alike)] if alike else parts
    others = ", ".join(f"{said.removesuffix(' than').removesuffix(' as')} in {count}" for said, count in rest)
    return f"{candidate} is {first[0]} {baseline} in {first[1]} of {len(timed)} cases, {others}{_missing(rows)}"


def _all(count: int) -> str:
    return "the one case" if count == 1 else "both cases" if count == 2 else f"all {count} cases"


def _missing(rows: pd.DataFrame) -> str:
    count = int(rows["speedup"].isna().sum())
    return f" ({count} more {'has' if count == 1 else 'have'} no times to compare)" if count else ""


def _range(factors: pd.Series) -> str:
    """``6.12–11.4×``, a single value where both ends round to the same, percentages where all are close to 1."""
    if factors.empty:
        return ""
    low, high = float(factors.min()), float(factors.max())
    if high < _PERCENT:
        ends, unit = [f"{(end - 1) * 100:.1f}" for end in (low, high)], " %"
    else:
        ends, unit = [f"{end:.{2 if end < 10 else 1 if end < 100 else 0}f}" for end in (low, high)], "×"
    return ("–".join(dict.fromkeys(ends))) + unit


def worst(rows: Sequence[pd.DataFrame]) -> float:
    """The smallest certain speedup below 1: the upper end of its interval. Infinity where nothing is slower for certain.

    It is 0 where a candidate is wrong.
    """
    if any(frame["verdict"].eq(WRONG).any() for frame in rows):
        return 0.0
    highs = [frame.loc[frame["verdict"] == "slower", "speedup_high"].min() for frame in rows]
    return min((float(high) for high in highs if not math.isnan(high)), default=math.inf)
