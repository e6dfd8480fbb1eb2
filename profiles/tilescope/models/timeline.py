"""Timelines: launches in the order in which the GPU ran them, the gaps between them, and the part the CPU caused.

Pure: frame -> frame. Starts, durations and calls are torch.profiler's, all on one clock that it aligns. Launches without a
start, such as ncu's, are left out.
"""

from __future__ import annotations

import pandas as pd

from tilescope.table.schema import CASE_COLUMNS

_CASE = ["run_id", *CASE_COLUMNS, "source"]
#: Columns that identify one repetition of a case, whose launches follow each other on one clock.
REPETITION = [*_CASE, "sample"]
_TIMES = {"launch_start": "start", "gpu_time": "duration", "launch_call": "call"}

COLUMNS = [*REPETITION, "launch", "function", "start", "duration", "gap", "call", "late"]
TOTALS_COLUMNS = [*REPETITION, "launches", "window", "busy", "gaps", "late", "busy_share"]


def timeline(table: pd.DataFrame) -> pd.DataFrame:
    """One row a launch and repetition, by repetition and then by start; times in seconds.

    ``start``: after the repetition's first launch began. ``duration``: on the GPU. ``call``: when the CPU began the call
    that made the launch, on the same scale (absent in runs recorded before it was kept).

    ``gap = max(0, start - E)`` with ``E`` the latest end of any earlier launch of the repetition, so launches that
    overlap on several streams leave no gap; absent for the first launch. ``late = min(gap, max(0, call - E))`` is the
    part of the gap before the CPU began the call, when the GPU waited for the CPU; absent where ``call`` is.
    """
    rows = table[table["metric"].isin(list(_TIMES)) & table["launch"].notna() & table["sample"].notna()]
    key = [*REPETITION, "launch", "function"]
    # Integer codes are faster than the keys, whose names may have hundreds of characters.
    codes = rows.groupby(key, sort=False).ngroup()
    values = {
        name: pd.Series(some["value"].to_numpy(), index=codes[some.index])
        for metric, name in _TIMES.items()
        for some in [rows[rows["metric"] == metric]]
    }
    found = rows[key].groupby(codes).first().assign(**values)
    found = found.dropna(subset=["start", "duration"]).sort_values([*REPETITION, "start", "launch"], ignore_index=True)
    repetition = found.groupby(REPETITION, sort=False).ngroup()
    ends = (found["start"] + found["duration"]).groupby(repetition).cummax().groupby(repetition).shift()
    gap = (found["start"] - ends).clip(lower=0)
    late = (found["call"] - ends).clip(lower=0)
    return found.assign(gap=gap, late=late.where(late < gap, gap).where(late.notna()))[COLUMNS]


def totals(launches: pd.DataFrame) -> pd.DataFrame:
    """One row a repetition of ``timeline``'s frame, times in seconds.

    ``window``: from the first launch's start to the last end. ``gaps``: their sum. ``busy = window - gaps``: the time in
    which at least one launch ran. ``busy_share = busy / window``. ``late``: the sum over gaps, absent where no call is
    known.
    """
    ends = launches["start"] + launches["duration"]
    grouped = launches.assign(end=ends).groupby(REPETITION, sort=False)
    found = grouped.agg(launches=("start", "size"), first=("start", "min"), last=("end", "max"), gaps=("gap", "sum"))
    found["late"] = grouped["late"].sum(min_count=1)
    found["window"] = found["last"] - found["first"]
    found["busy"] = found["window"] - found["gaps"]
    found["busy_share"] = found["busy"] / found["window"].where(found["window"] > 0)
    return found.reset_index()[TOTALS_COLUMNS]


def typical(sums: pd.DataFrame) -> pd.DataFrame:
    """The repetition of each case in ``totals``' frame with the median window (the lower one of two)."""
    ordered = sums.sort_values("window", kind="stable")
    grouped = ordered.groupby(_CASE, sort=False)
    middle = grouped.cumcount() == (grouped["window"].transform("size") - 1) // 2
    return ordered[middle].sort_index(ignore_index=True)


def of_repetitions(launches: pd.DataFrame, sums: pd.DataFrame) -> pd.DataFrame:
    """The launches of the repetitions in ``sums``, which are rows of ``totals``, in their order."""
    return sums[REPETITION].merge(launches, on=REPETITION)[COLUMNS]
