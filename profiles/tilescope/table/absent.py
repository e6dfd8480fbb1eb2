"""Removes zeros that stand for absent values. Pure: frame -> frame."""

from __future__ import annotations

import pandas as pd

from tilescope.table.schema import CASE_COLUMNS

#: Metrics that are never really 0. Tools print 0 for a launch without such requests, for an estimate that was not made, and for
#: a value too small for two decimals (a few blocks on many multiprocessors).
AS_ZERO = frozenset({"estimated_occupancy", "sectors_per_load", "sectors_per_store", "waves"})
#: A rate that can be 0, and the metric of the same launch that is 0 where the rate is undefined.
_RATE, _OF_NOTHING = "l1_hit_rate", "l1_bytes"


def without(table: pd.DataFrame) -> pd.DataFrame:
    """The table without zeros that stand for absent values. Runs from before 2026-11-25 have such zeros."""
    none = table["value"].eq(0)
    zero = none & table["metric"].isin(AS_ZERO)
    rates, nothing = none & table["metric"].eq(_RATE), none & table["metric"].eq(_OF_NOTHING)
    if rates.any() and nothing.any():
        launch = [*CASE_COLUMNS, "launch", "sample", "source"]
        known = pd.MultiIndex.from_frame(table.loc[nothing, launch])
        zero.loc[rates] = pd.MultiIndex.from_frame(table.loc[rates, launch]).isin(known)
    return table[~zero].reset_index(drop=True) if zero.any() else table
