"""A run's table in the shapes that several topics need. Pure: table to frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd
from tilescope.table.case_table import by_problem, gather
from tilescope.table.schema import CASE_COLUMNS

from tilescope_dashboard.data.kernel_cases import KernelCase


def default_configs(table: pd.DataFrame) -> pd.DataFrame:
    """The table without sweeps: rows of each implementation's default config.

    An implementation that has no default is represented by its fastest config, or by the first where nothing was timed.
    """
    if not (table["config"] != "").any():
        return table
    own = table["config"] == ""
    swept = table[~own.groupby([table[c] for c in ("kernel", "impl", "pass", "workload")]).transform("any")]
    fastest = {
        tuple(case.key[name] for name in CASE_COLUMNS)
        for of in by_problem(gather(swept)).values()
        for case in of.values()
    }
    kept = swept.index[pd.MultiIndex.from_frame(swept[CASE_COLUMNS]).isin(fastest)] if fastest else []
    return table[own | table.index.isin(kept)]


def largest_problem(table: pd.DataFrame) -> tuple[str, str]:
    """``(workload, pass)`` with the most algorithm's bytes, forward where there is one; two empty texts if none."""
    bytes_needed = table[table["metric"].isin(["algorithm_bytes_read", "algorithm_bytes_written"])]
    if bytes_needed.empty:
        return ("", "")
    forward = bytes_needed[bytes_needed["pass"].eq("forward")]
    rows = forward if len(forward) else bytes_needed
    of_one = rows.groupby(["workload", "pass", "impl"], sort=False)["value"].sum()
    # Ties go to the first, as in ``summary.representative`` and ``listings.largest``.
    workload, direction, _ = of_one.idxmax()
    return (str(workload), str(direction))


def first_problem(
    table: pd.DataFrame, offered: Iterable[tuple[str, str]], case: KernelCase | None = None
) -> tuple[str, str] | None:
    """The first of these that is ``offered``: the ``case``'s problem, the ``largest_problem``, any. None if nothing is."""
    known = list(offered)
    if case is not None and case.problem in known:
        return case.problem
    largest = largest_problem(table)
    return largest if largest in known else next(iter(known), None)


def problems(rows: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """The workloads and passes of the rows, by their labels."""
    pairs = rows[["workload", "pass"]].drop_duplicates().itertuples(index=False, name=None)
    return {f"{workload} · {direction}": (workload, direction) for workload, direction in pairs}


def with_first(rows: pd.DataFrame, wanted: Mapping[str, str]) -> pd.DataFrame:
    """The rows sorted so that those with the wanted values come first; the first column of ``wanted`` counts most."""
    others = pd.DataFrame({column: rows[column] != value for column, value in wanted.items()})
    return rows.loc[others.sort_values(list(others), kind="stable").index]
