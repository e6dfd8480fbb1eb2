"""A comparison in one sentence: which side is faster, by how much, and in how many of the cases. Pure: frame -> text."""

from __future__ import annotations

import pandas as pd

#: Below this a factor is written as a percentage.
_PERCENT = 1.1


def sentence(rows: pd.DataFrame, subject: str, other: str, *, of_base: bool = True) -> str:
    """``softmax is 6.1–11× faster than eager in all 12 cases``.

    ``rows`` are those of ``compare.compare``. ``subject`` names the base, or with ``of_base`` False the other side, such as a
    run after a change. Only significant differences count as faster or slower.
    """
    timed = rows[rows["ratio"].notna()]
    if timed.empty:
        return f"{subject} against {other}: {_why_not(rows)}"
    # ``ratio`` is the other's time over the base's.
    speeds = timed["ratio"] if of_base else 1 / timed["ratio"]
    won, lost = ("slower", "faster") if of_base else ("faster", "slower")
    faster, slower = speeds[timed["verdict"] == won], 1 / speeds[timed["verdict"] == lost]
    alike = int((timed["verdict"] == "alike").sum())
    parts = [(f"{_range(faster)} faster than", faster.size), (f"{_range(slower)} slower than", slower.size)]
    parts = [part for part in parts if part[1]]
    if len(parts) + bool(alike) == 1:
        said = parts[0][0] if parts else "as fast as"
        return f"{subject} is {said} {other} in {_all(len(timed))}{_missing(rows)}"
    first, *rest = [*parts, ("as fast as", alike)] if alike else parts
    others = ", ".join(f"{said.removesuffix(' than').removesuffix(' as')} in {count}" for said, count in rest)
    return f"{subject} is {first[0]} {other} in {first[1]} of {len(timed)} cases, {others}{_missing(rows)}"


def _all(count: int) -> str:
    return "the one case" if count == 1 else "both cases" if count == 2 else f"all {count} cases"


def _missing(rows: pd.DataFrame) -> str:
    """A remark on the number of cases without times on both sides; empty where there are none."""
    count = int(rows["ratio"].isna().sum())
    return f" ({count} more {'has' if count == 1 else 'have'} no times to compare)" if count else ""


def _why_not(rows: pd.DataFrame) -> str:
    if rows.empty:
        return "no case in common"
    if rows["verdict"].eq("not comparable").any():
        return "times cannot be compared"
    return "no times to compare"


def _range(factors: pd.Series) -> str:
    """``6.1–11×``, a single value where both ends round to the same, percentages where all are close to 1."""
    if factors.empty:
        return ""
    low, high = float(factors.min()), float(factors.max())
    if high < _PERCENT:
        ends, unit = [f"{(end - 1) * 100:.1f}" for end in (low, high)], " %"
    else:
        ends, unit = [f"{end:.{2 if end < 2 else 1 if end < 10 else 0}f}" for end in (low, high)], "×"
    return ("–".join(dict.fromkeys(ends))) + unit
