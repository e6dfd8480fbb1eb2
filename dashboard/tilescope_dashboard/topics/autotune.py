"""Autotune: the best config of a sweep, and the parameters that it is drawn over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd
from tilescope.models import sweeps
from tilescope.models.sweeps import COLOURINGS, alike, best, close, over_best
from tilescope.table.units import several

from tilescope_dashboard.data.columns import Column
from tilescope_dashboard.data.units import times, write
from tilescope_dashboard.topics.sentence import Sentence

#: Number of parameters' selectors that are shown at first.
_SELECTORS = 3
#: Explains the view where it has nothing to show.
ABOUT = Sentence("Autotune", "Every config of a kernel, measured or compiled.")
#: A remark on a sweep of code that has changed.
GONE = "The code has changed since this sweep, so no config is offered. 'tilescope tune {}' times the present code. "
#: A remark on a sweep of a kernel that the default does not launch.
OTHER = "These are configs of {}, and the default launches {}, so no config is offered. "
_MEASURES = (
    Column("time", "time", "second"), Column("over", "over the best", "ratio"), Column("registers", "registers", "count"),
    Column("shared_memory", "shared memory (B)", "byte"), Column("spills", "spills (B)", "byte"),
    Column("theoretical_occupancy", "occupancy", "ratio"), Column("hbm_bytes", "HBM traffic (B)", "byte"), Column("longest_stall", "longest stall"), Column("sources", "from"),
    Column("reason", "failure"),
)  # fmt: skip
#: Columns that are shown if any config has a value.
_OF_SOME = ("hbm_bytes", "longest_stall", "reason")


def columns(cells: pd.DataFrame, varying: Iterable[str]) -> tuple[Column, ...]:
    """The table's columns: the time, one for each parameter in ``varying``, and the rest."""
    time, over, *measures = _MEASURES
    return (
        time,
        over,
        *(Column(name, name, "count" if pd.api.types.is_numeric_dtype(cells[name]) else "text") for name in varying),
        *(c for c in measures if c.name not in _OF_SOME or (cells[c.name].notna() & cells[c.name].ne("")).any()),
    )


def colourings(cells: pd.DataFrame) -> dict[str, str]:
    """Columns of ``sweeps.COLOURINGS`` with values, by their labels."""
    return {label: column for column, (label, _, _) in COLOURINGS.items() if cells[column].notna().any()}


def most_telling(cells: pd.DataFrame, columns: Iterable[str]) -> str | None:
    """The first column in which configs of one sweep differ, or the first of all; None where there is none."""
    known = list(columns)
    sweep = sweeps.names(cells)
    return next((c for c in known if (cells.groupby(sweep)[c].nunique() > 1).any()), next(iter(known), None))


def axes(cells: pd.DataFrame, column: str | None) -> list[str]:
    """The varying parameters. Those whose values change the column's median by more than ``CLOSE`` come first."""

    def idle(name: str) -> bool:
        medians = cells.groupby(name)[column].median()
        return medians.nunique() < 2 or close(medians)

    varying = sweeps.parameters(cells)
    return varying if column is None else sorted(varying, key=idle)


def set_aside(cells: pd.DataFrame, sweep: str, column: str, offered: Sequence[str]) -> tuple[list[str], list[str]]:
    """The offered parameters in two parts: the costliest of the sweep, to be shown, and the others, to be set aside if several."""
    less = COLOURINGS[column][2]
    found = sweeps.effects(sweeps.ranked(cells, sweep, {}, column, less), less)
    # If few costs are known the other parameters follow in their order.
    costliest = list(dict.fromkeys([*found, *sweeps.parameters(cells)]))[:_SELECTORS]
    first = [name for name in offered if name in costliest]
    aside = [name for name in offered if name not in costliest]
    return (first, aside) if len(aside) > 1 and len(offered) > _SELECTORS else (list(offered), [])


def grid(rows: pd.DataFrame, across: str, down: str) -> pd.DataFrame:
    """The best of ``ranked``'s rows for each pair of two parameters' values. ``best`` marks the best, unless all are equal."""
    top = best(rows)
    return rows.drop_duplicates([across, down]).assign(
        best=lambda c: False if alike(rows) else c["value"] == (0 if top is None else top["value"])
    )


def listed(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the ``sources`` of time and resources as one text, and the time ``over`` the best."""
    said = rows[["time_source", "code_source", "count_source"]].apply(_sources, axis=1, result_type="reduce")
    return rows.assign(sources=said.astype(object), over=over_best(rows["time"], less=True))


def _sources(row: pd.Series) -> str:
    """``torch_profiler (gpu time), compiler``: the time's source with its clock, then the others."""
    time, *others = (str(name) if pd.notna(name) else "" for name in row)
    tool, _, clock = time.partition(", ")
    said = f"{tool} ({clock})" if clock else tool
    return ", ".join(filter(None, dict.fromkeys([said, *(name for name in others if name != tool)])))


def sentence(rows: pd.DataFrame, shown: pd.DataFrame, label: str, unit: str, won: float | None = None) -> Sentence:
    """The sentence on the best of ``ranked``'s rows. ``shown`` are the rows of ``grid``, ``won`` is the best one's ``gain``."""
    top = best(rows)
    # A config may fail in one collector and have its value from another.
    failed = int((rows["reason"].ne("") & rows["value"].isna()).sum())
    said = [f"{failed} failed: hover over a hatched cell to see why."] if failed else []
    if len(shown) < len(rows):
        said.append("Each cell is the best over the other parameters.")
    if top is None:
        return Sentence(f"None of {several(len(rows), 'config')} has a known {label}", " ".join(said))
    value = write(top["value"], unit)
    if alike(rows):
        return Sentence(f"All {several(len(rows), 'config')} have the same {label}: {value}", " ".join(said))
    if close(shown["value"]):
        apart = write(sweeps.spread(shown["value"]), "ratio", 2)
        said.append(f"The cells lie within {apart}: the choice hardly matters here.")
    found = sweeps.effects(rows, less=unit != "ratio")
    if found:
        said.insert(0, _costs(found, at_most=sweeps.costing(rows) != "costs"))
    if unit == "second" and not rows.loc[rows["time"].notna(), "checked"].any():
        said.append("This run did not compare their results with the reference.")
    if unit == "second" and won is None:
        said.append("This run did not time the default (the implementation's own choice) by this clock.")
    measure = value if unit == "second" else f"{value} {label}"
    title = f"Best of {len(rows)}: {top['config'].replace(',', ', ')} ({measure}{_over_default(won)})"
    return Sentence(title, " ".join(said))


def _over_default(won: float | None) -> str:
    """``, 1 % faster than the default``; empty where that is not known."""
    if not won:
        return ""
    if abs(won - 1) < 0.005:
        return ", as fast as the default"
    if won >= 2:
        return f", {times(won)} the default's speed"
    return f", {write(abs(won - 1), 'ratio', 2)} {'faster' if won > 1 else 'slower'} than the default"


def _costs(found: Mapping[str, float], at_most: bool) -> str:
    """``What matters most: num_warps (a wrong value costs 757 %), ROWS (27 %).`` ``found`` are ``sweeps.effects``."""
    told = [(name, write(part, "ratio", 2)) for name, part in found.items() if part > 0][: sweeps.TOLD]
    if not told:
        return "No parameter matters."
    (first, most), *others = told
    upto = "up to " if at_most else ""
    said = [f"{first} (a wrong value costs {upto}{most})", *(f"{name} ({upto}{part})" for name, part in others)]
    return f"What matters most: {', '.join(said)}."
