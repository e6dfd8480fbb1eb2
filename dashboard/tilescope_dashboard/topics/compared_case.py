"""Compare: the chosen case among those compared, and the default baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from tilescope.models import baseline
from tilescope.runs.store import LoadedRun

from tilescope_dashboard.data.kernel_cases import OF_KERNEL, KernelCase
from tilescope_dashboard.data.units import times


def declared(loaded: LoadedRun | None, kernel: str) -> Mapping[str, str]:
    """The declarations of the kernel's implementations in the run."""
    return baseline.declarations(loaded.run.kernels.get(kernel)) if loaded else {}


def usual(loaded: LoadedRun | None, kernel: str) -> list[str]:
    """The usual baseline, an implementation of this run; nothing if the run has none."""
    there = set(loaded.table.loc[loaded.table["kernel"] == kernel, "impl"].unique()) if loaded else set()
    impl = baseline.usual(there, declared(loaded, kernel))
    return [f"{loaded.run.id}:{impl}"] if loaded and impl else []


def of_case(rows: pd.DataFrame, case: KernelCase | None) -> pd.DataFrame:
    """Rows of ``compare.against`` for the case, else for its problem, one per baseline; none without a case."""
    if case is None:
        return rows.head(0)
    same = rows[(rows["workload"] == case.workload) & (rows["pass"] == case.direction)]
    own = same[(same["impl"] == case.impl) & (same["config"] == case.config)]
    return own if len(own) else same


def said(rows: pd.DataFrame, case: KernelCase | None, names: Mapping[str, str]) -> str:
    """The case's speedups over up to two baselines, a sentence each. ``names`` are ``declared``."""
    ours = of_case(rows, case)
    return "".join(
        f"{baseline.called(row['impl'], names)} on {row['workload']}, {row['pass']}: {times(row['speedup'])} vs {baseline.called(row['baseline_impl'], names)}. "
        for row in ours[ours["speedup"].notna()].head(2).to_dict("records")
    )


def parts(row: Mapping[Any, Any]) -> dict[str, str]:
    """The fields of a row's ``KernelCase``."""
    return dict(zip(KernelCase._fields, (row[column] for column in OF_KERNEL), strict=True))
