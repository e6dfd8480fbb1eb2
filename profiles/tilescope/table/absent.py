"""Zeros that stand for what was absent. Pure: frame -> frame."""

from __future__ import annotations

import pandas as pd

from tilescope.table.schema import CASE_COLUMNS

#: What tools print as 0 where there was nothing to take it of, or too little for two decimals: a launch without such requests,
#: an estimate that was not made, a few blocks on many multiprocessors. No launch that has them has 0.
AS_ZERO = frozenset({"estimated_occupancy", "sectors_per_load", "sectors_per_store", "waves"})
#: A rate that can be 0, and the metric that is 0 of the same launch where there was nothing to take it of.
_RATE_OF_NOTHING = {"l1_hit_rate": "l1_bytes"}


def without(table: pd.DataFrame) -> pd.DataFrame:
    """The table without zeros that stand for what was absent (``AS_ZERO``): runs of before 2026-11-25 have them."""
    none = table["value"].eq(0)
    zero = none & table["metric"].isin(AS_ZERO)
    for rate, of in _RATE_OF_NOTHING.items():
        rates, nothing = none & table["metric"].eq(rate), none & table["metric"].eq(of)
        if rates.any() and nothing.any():
            launch = [*CASE_COLUMNS, "launch", "sample", "source"]
            known = pd.MultiIndex.from_frame(table.loc[nothing, launch])
            zero.loc[rates] = pd.MultiIndex.from_frame(table.loc[rates, launch]).isin(known)
    return table[~zero].reset_index(drop=True) if zero.any() else table
