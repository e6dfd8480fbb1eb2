"""Compare: the chosen case among all that are compared, and the usual baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from tilescope.runs.store import LoadedRun

from tilescope_dashboard.data.kernel_cases import OF_KERNEL, KernelCase
from tilescope_dashboard.data.units import times

#: What is compared with first where no baseline was chosen.
_USUAL = ("eager", "compile", "aten")


def usual(loaded: LoadedRun | None, kernel: str) -> list[str]:
    """The baseline where none was chosen, ``RUN:IMPLEMENTATION`` of this run; none where it has none of the usual ones."""
    there = set(loaded.table.loc[loaded.table["kernel"] == kernel, "impl"].unique()) if loaded else set()
    return [f"{loaded.run.id}:{impl}" for impl in _USUAL if loaded and impl in there][:1]


def of_case(rows: pd.DataFrame, case: KernelCase | None) -> pd.DataFrame:
    """``compare.against``'s rows of the case, else of its problem: one a baseline; none without a case."""
    if case is None:
        return rows.head(0)
    same = rows[(rows["workload"] == case.workload) & (rows["pass"] == case.direction)]
    own = same[(same["impl"] == case.impl) & (same["config"] == case.config)]
    return own if len(own) else same


def said(rows: pd.DataFrame, case: KernelCase | None) -> str:
    """The case's speedups over up to two baselines, each in a sentence; empty where there are none."""
    ours = of_case(rows, case)
    return "".join(
        f"{row['impl']} on {row['workload']}, {row['pass']}: {times(row['ratio'])} vs {row['other_impl']}. "
        for row in ours[ours["ratio"].notna()].head(2).to_dict("records")
    )


def parts(row: Mapping[Any, Any]) -> dict[str, str]:
    """A row's case, by the fields of a ``KernelCase``."""
    return dict(zip(KernelCase._fields, (row[column] for column in OF_KERNEL), strict=True))
