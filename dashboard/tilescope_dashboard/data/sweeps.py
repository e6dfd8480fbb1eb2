"""Sweeps over configs, from ``frames.configs``' frame. Pure: frame -> frame; no UI here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd


def size(table: pd.DataFrame, kernel: str) -> int:
    """How many configs of the kernel a run's table has; with one there is nothing to choose from."""
    return int(table.loc[table["kernel"] == kernel, "config"].replace("", pd.NA).nunique())


def names(cells: pd.DataFrame) -> pd.Series:
    """What people call the sweep of each config: its implementation, pass and workload."""
    return cells[["impl", "pass", "workload"]].apply(" · ".join, axis=1, result_type="reduce").astype(object)


def ranked(cells: pd.DataFrame, sweep: str, held: Mapping[str, str], column: str, less: bool) -> pd.DataFrame:
    """One sweep's configs whose parameters are as ``held`` says, by ``column``, which is also their ``value``.

    The best comes first: the least if ``less``, else the largest; those without a value last.
    """
    found = cells[names(cells) == sweep]
    for name, value in held.items():
        found = found[found[name].astype(str) == value]
    return found.assign(value=found[column]).sort_values("value", ascending=less, na_position="last", ignore_index=True)


def telling(cells: pd.DataFrame, columns: Iterable[str]) -> str | None:
    """The first of the columns in which configs of one sweep differ, else the first; None where there is none."""
    known = list(columns)
    sweep = names(cells)
    return next((c for c in known if (cells.groupby(sweep)[c].nunique() > 1).any()), next(iter(known), None))


#: Values that lie within this part of the least one differ by little more than one measurement does from the next.
CLOSE = 0.02


def spread(values: pd.Series) -> float | None:
    """How far the largest value lies above the least, as a part of it; None where there are not two, or none above 0."""
    known = values.dropna()
    return float(known.max() / known.min() - 1) if len(known) > 1 and known.min() > 0 else None


def close(values: pd.Series) -> bool:
    """Whether the ``spread`` is less than ``CLOSE``."""
    apart = spread(values)
    return apart is not None and apart < CLOSE


def by_influence(cells: pd.DataFrame, parameters: Sequence[str], column: str | None) -> list[str]:
    """The parameters in their order, but those first that the column's median depends on by more than ``CLOSE``."""
    if column is None:
        return list(parameters)

    def idle(name: str) -> bool:
        medians = cells.groupby(name)[column].median()
        return medians.nunique() < 2 or close(medians)

    return sorted(parameters, key=idle)


def alike(rows: pd.DataFrame) -> bool:
    """Whether ``ranked``'s rows, more than one, have all one value."""
    return len(rows) > 1 and bool(rows["value"].notna().all()) and rows["value"].nunique() == 1


def best(rows: pd.DataFrame) -> pd.Series | None:
    """The first of ``ranked``'s rows, if it has a value."""
    return rows.iloc[0] if len(rows) and pd.notna(rows["value"].iloc[0]) else None


def over(rows: pd.DataFrame, across: str, down: str) -> pd.DataFrame:
    """The best of ``ranked``'s rows for each pair of two parameters' values; ``best`` marks those that no other beats, unless
    all are alike.
    """
    top = best(rows)
    return rows.drop_duplicates([across, down]).assign(
        best=lambda c: False if alike(rows) else c["value"] == (0 if top is None else top["value"])
    )


def with_sources(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with where the time and the resources are from, as one text, in ``sources``."""
    said = rows[["time_source", "code_source"]].apply(
        lambda row: "; ".join(str(s) for s in row if pd.notna(s) and s), axis=1, result_type="reduce"
    )
    return rows.assign(sources=said.astype(object))
